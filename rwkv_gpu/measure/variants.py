"""Every variant of a kernel that a device can run, by name."""

from dataclasses import replace

from ..gpu.device import Capabilities
from ..kernels.defaults import default_tuning
from ..kernels.expert_config import EXPERT_TILE, ExpertConfig, expert_gemm_lane, expert_gemv, expert_gemv_int
from ..kernels.tuning import (
    COOP,
    MANY,
    TILE,
    TILE_F16,
    WIDE_TILE,
    GemmConfig,
    Tuning,
    gemm_int8,
    gemm_lane,
    gemv,
    gemv_int,
    skinny_gemm,
)


def gemm_configs(can: Capabilities) -> dict[str, GemmConfig]:
    """Every kind of matrix kernel that a device can run."""
    size = can.subgroup_size
    shapes = {"vec": gemv(64, 16, 4, 1), "vec, rows": gemv(32, 8, 2, 4), "tile": TILE}
    if can.max_workgroup_memory >= WIDE_TILE.workgroup_bytes:
        shapes["wide tile"] = WIDE_TILE
    shapes["tile, parts"] = replace(TILE, fill=16)
    if can.f16:
        shapes["tile f16"] = TILE_F16
        if can.cooperative_matrix and size == 32:
            shapes["matrix units"] = COOP
    if can.subgroup:
        shapes["vec, subgroups"] = gemv(
            4 * can.subgroup_width, 2 * can.subgroup_width, 4, 2, subgroup_width=can.subgroup_width
        )
        shapes["vec, a subgroup"] = gemv(
            2 * can.subgroup_width, can.subgroup_width, 2, 1, prefetch_depth=2, subgroup_width=can.subgroup_width
        )
        shapes["vec, part of a subgroup"] = gemv(
            can.subgroup_width, can.subgroup_width // 2, 2, 3, subgroup_width=can.subgroup_width
        )
        shapes["row"] = gemv_int(
            4 * can.subgroup_width, can.subgroup_width, 2, subgroup_width=can.subgroup_width, max_workgroups=3
        )
        shapes["dot"] = gemm_int8(32, 8, 64, 32, activations="int16")
        shapes["dot, bytes"] = gemm_int8(32, 8, 32, 16, activations="int8", fill=16)
        shapes["few"] = skinny_gemm(
            4 * can.subgroup_width,
            can.subgroup_width,
            2,
            4,
            staged=2 * can.subgroup_width,
            subgroup_width=can.subgroup_width,
            max_workgroups=3,
        )
        shapes["few, given"] = skinny_gemm(
            2 * can.subgroup_width, can.subgroup_width // 2, 4, 2, subgroup_width=can.subgroup_width
        )
        shapes["few, copied"] = replace(shapes["few"], copies=True)
        shapes["row, bytes"] = gemv_int(
            can.subgroup_width,
            can.subgroup_width,
            2,
            subgroup_width=can.subgroup_width,
            max_workgroups=MANY,
            activations="int8",
        )
    if size == 8:
        shapes |= {"lane": gemm_lane(2, 1), "lane, rows": gemm_lane(4, 16)}
    return shapes


def expert_configs(can: Capabilities) -> dict[str, ExpertConfig]:
    """Every kind of kernel for experts that a device can run, choices as they come and sorted."""
    size = can.subgroup_size
    shapes = {
        "vec": expert_gemv(64, 64, 4, 1),
        "vec, sorted": expert_gemv(32, 8, 2, 4),
    }
    shapes["tile"] = EXPERT_TILE
    if can.subgroup:
        shapes["vec, subgroups"] = expert_gemv(
            4 * can.subgroup_width, 2 * can.subgroup_width, 4, 1, subgroup_width=can.subgroup_width
        )
        shapes["row"] = expert_gemv_int(
            4 * can.subgroup_width,
            can.subgroup_width,
            2,
            subgroup_width=can.subgroup_width,
            summing=(can.subgroup_width, 1),
        )
        shapes["vec, a subgroup, sorted"] = expert_gemv(
            can.subgroup_width, can.subgroup_width, 2, 4, subgroup_width=can.subgroup_width
        )
    if size == 8:
        shapes |= {"lane": expert_gemm_lane(2, 1), "lane, sorted": expert_gemm_lane(2, 8)}
    return shapes


def tunings(can: Capabilities) -> dict[str, Tuning]:
    """Every way that a device can share a row among lanes."""
    default, size = default_tuning(can), can.subgroup_size
    ways = {"workgroup": replace(default, row_lanes=64, reduce="workgroup")}
    if can.subgroup:
        ways["subgroup"] = replace(default, row_lanes=4 * size, reduce="subgroup")
        ways["one subgroup"] = replace(default, row_lanes=size, reduce="one_subgroup")
    return ways
