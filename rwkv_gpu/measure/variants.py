"""Every variant of a kernel that a device can run, by name."""

from dataclasses import replace

from ..gpu.defaults import default_tuning
from ..gpu.device import Capabilities
from ..gpu.expert_shape import EXPERT_TILE, ExpertShape, expert_lane, expert_row, expert_vec
from ..gpu.tuning import COOP, MANY, TILE, TILE_F16, WIDE_TILE, LinearShape, Tuning, dot, few, lane, row, vec


def linear_shapes(can: Capabilities) -> dict[str, LinearShape]:
    """Every kind of matrix kernel that a device can run."""
    size = can.subgroup_size
    shapes = {"vec": vec(64, 16, 4, 1), "vec, rows": vec(32, 8, 2, 4), "tile": TILE}
    if can.max_workgroup_memory >= WIDE_TILE.workgroup_bytes:
        shapes["wide tile"] = WIDE_TILE
    shapes["tile, parts"] = replace(TILE, fill=16)
    if can.f16:
        shapes["tile f16"] = TILE_F16
        if can.cooperative_matrix and size == 32:
            shapes["matrix units"] = COOP
    if can.subgroup:
        shapes["vec, subgroups"] = vec(4 * can.reach, 2 * can.reach, 4, 2, reach=can.reach)
        shapes["vec, a subgroup"] = vec(2 * can.reach, can.reach, 2, 1, ahead=2, reach=can.reach)
        shapes["vec, part of a subgroup"] = vec(can.reach, can.reach // 2, 2, 3, reach=can.reach)
        shapes["row"] = row(4 * can.reach, can.reach, 2, reach=can.reach, most=3)
        shapes["dot"] = dot(32, 8, 64, 32, x="int16")
        shapes["dot, bytes"] = dot(32, 8, 32, 16, x="int8", fill=16)
        shapes["few"] = few(4 * can.reach, can.reach, 2, 4, staged=2 * can.reach, reach=can.reach, most=3)
        shapes["few, given"] = few(2 * can.reach, can.reach // 2, 4, 2, reach=can.reach)
        shapes["few, copied"] = replace(shapes["few"], copies=True)
        shapes["row, bytes"] = row(can.reach, can.reach, 2, reach=can.reach, most=MANY, x="int8")
    if size == 8:
        shapes |= {"lane": lane(2, 1), "lane, rows": lane(4, 16)}
    return shapes


def expert_shapes(can: Capabilities) -> dict[str, ExpertShape]:
    """Every kind of kernel for experts that a device can run, choices as they come and sorted."""
    size = can.subgroup_size
    shapes = {
        "vec": expert_vec(64, 64, 4, 1),
        "vec, sorted": expert_vec(32, 8, 2, 4),
    }
    shapes["tile"] = EXPERT_TILE
    if can.subgroup:
        shapes["vec, subgroups"] = expert_vec(4 * can.reach, 2 * can.reach, 4, 1, reach=can.reach)
        shapes["row"] = expert_row(4 * can.reach, can.reach, 2, reach=can.reach, summing=(can.reach, 1))
        shapes["vec, a subgroup, sorted"] = expert_vec(can.reach, can.reach, 2, 4, reach=can.reach)
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
