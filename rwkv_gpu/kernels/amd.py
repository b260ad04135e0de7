"""Replaces configurations for which AMD's shader compiler in Mesa (ACO) would spill registers.

ACO unrolls loops with known bounds, and issues the loads of all iterations at once. Each lane of a workgroup of 1,024
lanes has only 64 or 96 registers. profiles/amd-offline.md lists the compiler's results for every kernel. The
replacements were not timed, because no such GPU was available.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..gpu.device import Capabilities
from .gemm_config import UNLIMITED, GemmConfig

LANES = 512  # lanes of a workgroup


@dataclass(frozen=True)
class Spilling:
    """A kernel, a test for configurations that spill, and their replacement."""

    kernel: str
    spills: Callable[[GemmConfig], bool]
    instead: Callable[[GemmConfig], GemmConfig]


def _half_the_lanes(config: GemmConfig) -> GemmConfig:
    """The config with half the lanes per workgroup, in twice as many workgroups."""
    return replace(config, wg=LANES, max_workgroups=min(UNLIMITED, 2 * config.max_workgroups))


SPILLING = (
    Spilling("linear/gemv_int", lambda c: c.wg > LANES, _half_the_lanes),
    # With two rows of W, the loop over a row of x is too long for the compiler to unroll.
    Spilling(
        "linear/skinny_gemm",
        lambda c: c.r == 1 or c.wg > LANES,
        lambda c: replace(c, r=max(2, c.r), wg=min(LANES, c.wg)),
    ),
    Spilling("linear/gemv", lambda c: c.r * c.tb >= 16, lambda c: replace(c, r=2)),  # rows of F32
    Spilling("linear/gemm_int8", lambda c: c.prefetch_depth > 1, lambda c: replace(c, prefetch_depth=1)),
    Spilling("linear/gemm_tile", lambda c: c.wg == 64, lambda c: replace(c, wg=128)),  # half as many sums per lane
)


def is_amd(can: Capabilities) -> bool:
    """True if the device seems to be AMD's: its compiler chooses between subgroups of 32 and 64 lanes."""
    size = 64 if can.fragment else 0
    return can.subgroup and can.subgroup_size == size and can.subgroup_width == 32


def instead_of(config: GemmConfig) -> GemmConfig:
    """The configuration itself, or its replacement if it would spill."""
    rule = next((rule for rule in SPILLING if rule.kernel == config.kernel and rule.spills(config)), None)
    return rule.instead(config) if rule else config
