"""The table of all kernels. All code that selects, links, tests or tunes kernels uses it.

A kernel has a shader (`Kernel.name` is the file), the parts that fit its holes, device requirements, a tolerance for
its results, and the op that it serves. Kernels of matrix products (`GemmKernel`) and of experts (`ExpertKernel`) also
define values derived from their configurations, the configurations that `doctor` and the tests run (`trials`), and
those that `tune` tries (`candidates`).

To lower an op is to choose a kernel and a part for each hole. `link(kernel, parts, constants)` returns the shader, and
refuses a part that no hole of the kernel lists. To add a variant of a kernel, write the part and name it in its hole.
To add a kernel, write a shader and add an entry here. `rwkv-gpu doctor`, `rwkv-gpu tune` and the tests then include
it.

This package lies above `gpu/`, which compiles shaders and knows none of them, and below `ops/`, which defines the
computations.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import ShaderError
from ..gpu import shader
from ..gpu.device import Capabilities
from ..gpu.shader import Constant, Linked
from . import adapters, attention, dense, gemm, gemm_matrix, gemv, moe, rwkv, sampling, ssm
from .expert_config import ExpertConfig, ExpertKernel
from .gemm_config import GemmConfig, GemmKernel
from .kernel import KERNELS, Kernel
from .parts import PART_NEEDS

K = TypeVar("K", GemmKernel, ExpertKernel)

KERNELS.update(
    (one.name, one)
    for module in (adapters, dense, gemv, gemm, gemm_matrix, moe, rwkv, ssm, attention, sampling)
    for one in vars(module).values()
    if isinstance(one, Kernel)
)


def link(kernel: str, parts: Sequence[str] = (), constants: Mapping[str, Constant] | None = None) -> Linked:
    """Links a kernel with these parts, and the default parts of other holes, and specialises it by constants."""
    if kernel not in KERNELS:
        raise ShaderError(f"there is no kernel '{kernel}'")
    entry = KERNELS[kernel]
    parts = entry.complete(parts)
    entry.check(parts)
    return shader.link(kernel, [*parts, "lib/step"], constants, entry.core)


def variants(can: Capabilities) -> Iterator[tuple[str, str]]:
    """All pairs of a kernel that serves an op and a part of its holes that a device can run."""
    for kernel in KERNELS.values():
        if kernel.op:
            yield from ((kernel.name, part) for part in kernel.variants(can, PART_NEEDS))


def _trials(kind: type[K], can: Capabilities) -> dict[str, tuple[K, Any]]:
    return {
        name: (kernel, config)
        for kernel in KERNELS.values()
        if isinstance(kernel, kind) and kernel.needs.met(can)
        for name, config in kernel.trials(can).items()
        if config.runs_on(can)
    }


def gemm_trials(can: Capabilities) -> dict[str, tuple[GemmKernel, GemmConfig]]:
    """Trial configurations of all matrix product kernels that a device can run."""
    return _trials(GemmKernel, can)


def expert_trials(can: Capabilities) -> dict[str, tuple[ExpertKernel, ExpertConfig]]:
    """Trial configurations of all expert kernels that a device can run."""
    return _trials(ExpertKernel, can)


def gemm_candidates(
    can: Capabilities, rows: int, precision: str = "float32", packed: bool = False
) -> Iterator[GemmConfig]:
    """The configurations that `tune` tries for `rows` rows of x; `packed` adds those for formats of small integers."""
    for kernel in KERNELS.values():
        if isinstance(kernel, GemmKernel) and kernel.candidates and (packed or not kernel.packed_only):
            every = kernel.candidates(can, rows, precision) if kernel.needs.met(can) else ()
            yield from (config for config in every if config.runs_on(can))


def expert_candidates(can: Capabilities) -> Iterator[ExpertConfig]:
    """The configurations that `tune` tries for products with experts."""
    for kernel in KERNELS.values():
        if isinstance(kernel, ExpertKernel) and kernel.needs.met(can):
            yield from (config for config in kernel.candidates(can) if config.runs_on(can))
