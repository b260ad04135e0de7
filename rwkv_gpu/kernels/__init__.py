"""The kernels: what each is, what it needs of a device, and which configuration of it serves which work.

Above `gpu/`, which compiles and runs shaders and knows none of them by name; below `ops/`, which lowers maths to them.
"""

from . import registry as registry  # which lists every kernel in `kernel.KERNELS`
