"""Every variant of a kernel that a device can run, by name."""

from dataclasses import replace

from ..gpu.device import Capabilities
from ..gpu.tuning import (
    COOP,
    EXPERT_TILE,
    TILE,
    TILE_F16,
    ExpertShape,
    LinearShape,
    Tuning,
    default_tuning,
    dot,
    expert_lane,
    expert_vec,
    lane,
    vec,
)


def linear_shapes(can: Capabilities) -> dict[str, LinearShape]:
    """Every kind of matrix kernel that a device can run."""
    size = can.subgroup_size
    shapes = {"vec workgroup": vec("workgroup", 64, 4, 1), "vec workgroup, rows": vec("workgroup", 32, 2, 4)}
    shapes |= {"dot workgroup": dot("workgroup", 32, 2, 2), "tile": TILE}
    if can.f16:
        shapes["tile f16"] = TILE_F16
        if can.cooperative_matrix and size == 32:
            shapes["matrix units"] = COOP
    if can.subgroup:
        shapes["vec subgroup"] = vec("subgroup", 4 * size, 4, 2)
        shapes["vec one subgroup"] = vec("one_subgroup", size, 2, 1)
        shapes["vec one subgroup, rows"] = vec("one_subgroup", size, 4, 8)
        shapes["dot one subgroup"] = dot("one_subgroup", size, 4, 1)
    if size == 8:
        shapes |= {"lane": lane(2, 1), "lane, rows": lane(4, 16)}
    return shapes


def expert_shapes(can: Capabilities) -> dict[str, ExpertShape]:
    """Every kind of kernel for experts that a device can run, choices as they come and sorted."""
    size = can.subgroup_size
    shapes = {
        "vec workgroup": expert_vec("workgroup", 64, 4, 1),
        "vec workgroup, sorted": expert_vec("workgroup", 32, 2, 4),
    }
    shapes["tile"] = EXPERT_TILE
    if can.subgroup:
        shapes["vec subgroup"] = expert_vec("subgroup", 4 * size, 4, 1)
        shapes["vec one subgroup, sorted"] = expert_vec("one_subgroup", size, 2, 4)
    if size == 8:
        shapes |= {"lane": expert_lane(2, 1), "lane, sorted": expert_lane(2, 8)}
    return shapes


def tunings(can: Capabilities) -> dict[str, Tuning]:
    """Every way that a device can share a row among lanes."""
    default, size = default_tuning(can), can.subgroup_size
    ways = {"workgroup": replace(default, row_lanes=64, reduce="workgroup")}
    if can.subgroup:
        ways["subgroup"] = replace(default, row_lanes=4 * size, reduce="subgroup")
        ways["one subgroup"] = replace(default, row_lanes=size, reduce="one_subgroup")
    return ways
