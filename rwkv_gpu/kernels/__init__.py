"""The kernels: their descriptions, their device requirements, and the configuration for each kind of work.

This package lies above `gpu/`, which compiles and runs shaders without knowing their names. It lies below `ops/`,
which lowers operations to kernels.
"""

from . import registry as registry  # fills `kernel.KERNELS`
