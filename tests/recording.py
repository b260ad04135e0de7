"""Runs what a model says on the GPU, for tests: records, poisons, replays, reads."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan
from rwkv_gpu.gpu.weights import upload_weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.tuning import (
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
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.values import Value
from rwkv_gpu.ops.vocabulary import Weight

POISON = 0xFFFFFFFF  # NaN as a float, out of range as an index

Arrays = Mapping[str, np.ndarray]
Says = Callable[..., dict[str, Any]]  # (ops, weights, **inputs) -> outputs


def gemm_configs(device: Device) -> dict[str, GemmConfig]:
    """Every kind of matrix kernel that this device can run, at several sizes."""
    can = device.capabilities
    shapes = {
        "alone": gemv(64, 16, 2, 1),
        "alone_rows": gemv(32, 8, 2, 4),
        "ahead": gemv(32, 4, 2, 1, prefetch_depth=2),
    }
    shapes |= {"tile": TILE, "tile_parts": replace(TILE, fill=200)}
    if can.max_workgroup_memory >= WIDE_TILE.workgroup_bytes:
        shapes["wide_tile"] = WIDE_TILE
    if can.f16:
        shapes["tile_f16"] = TILE_F16
        if can.max_workgroup_memory >= WIDE_TILE.workgroup_bytes // 2:
            shapes["wide_tile_f16"] = replace(WIDE_TILE, tile="f16")
    if can.subgroup:
        size = can.subgroup_size
        shapes["subgroups"] = gemv(4 * size, 2 * size, 2, 2, subgroup_width=size)
        shapes["subgroup"] = gemv(2 * size, size, 1, 1, subgroup_width=size)
        shapes["part_rows"] = gemv(size, size // 2, 2, 3, subgroup_width=size)
        shapes["row"] = gemv_int(4 * size, size, 2, subgroup_width=size, max_workgroups=3)
        shapes["once"] = gemv_int(
            3 * size, size, 2, subgroup_width=size, max_workgroups=MANY, prefetch_depth=2
        )  # subgroups that are no power of two
        shapes["once_met"] = gemv_int(
            4 * size, size, 2, subgroup_width=size, max_workgroups=MANY, prefetch_depth=2, subgroups_per_row=2
        )  # rows of two subgroups
        shapes["once_apart"] = gemv_int(
            12 * size, size, 3, subgroup_width=size, max_workgroups=MANY, prefetch_depth=2, subgroups_per_row=3
        )  # of three, many rows
        shapes["row_bytes"] = gemv_int(
            2 * size, size // 2, 4, subgroup_width=size, max_workgroups=2, activations="int8"
        )
        shapes["few"] = skinny_gemm(2 * size, size, 2, 2, staged=size, subgroup_width=size, max_workgroups=3)
        shapes["few_whole"] = skinny_gemm(
            2 * size, size // 2, 4, 4, staged=2 * size, prefetch_depth=2, subgroup_width=size, max_workgroups=2
        )
        shapes["few_given"] = skinny_gemm(2 * size, size // 2, 2, 2, subgroup_width=size)
        shapes["few_copied"] = skinny_gemm(
            2 * size, size, 2, 4, staged=size, subgroup_width=size, max_workgroups=3, copies=True
        )
        shapes["few_gives"] = skinny_gemm(4 * size, size // 2, 4, 2, staged=3 * size, subgroup_width=size, copies=True)
        shapes["dot"] = gemm_int8(32, 8, 32, 16, activations="int16")
        shapes["dot_bytes"] = gemm_int8(16, 8, 32, 8, activations="int8", prefetch_depth=3)
        shapes["dot_wide"] = gemm_int8(16, 8, 64, 16, activations="int16")
        shapes["dot_parts"] = gemm_int8(32, 8, 32, 16, activations="int16", fill=200)
    if can.subgroup_size == 8:
        shapes |= {"lane": gemm_lane(2, 1), "lane_rows": gemm_lane(4, 16)}
    return shapes


def tunings(device: Device) -> dict[str, Tuning]:
    """Every way this device can spread work over lanes."""
    can = device.capabilities
    shapes = gemm_configs(device)
    ways = {"workgroup": Tuning(64, 64, "workgroup", ((2, shapes["alone"]), (MANY, TILE)))}
    ways["default"] = default_tuning(can)
    if can.subgroup:
        ways["subgroup"] = Tuning(4 * can.subgroup_size, 32, "subgroup", ((MANY, shapes["subgroups"]),))
        ways["one_subgroup"] = Tuning(can.subgroup_size, 32, "one_subgroup", ((MANY, shapes["subgroup"]),))
    return ways


def named(arrays: Arrays) -> dict[str, Weight]:
    """The weights as a model sees them."""
    return {name: Weight(name, array.shape) for name, array in arrays.items()}


def record(
    device: Device, says: Says, arrays: Arrays, inputs: Arrays, rows: int, tuning: Tuning | None = None
) -> tuple[Plan, Scratch]:
    """The plan for up to `rows` rows; `inputs` give dtypes and the shapes of a row."""
    scratch = Scratch(device)
    tuning = tuning or default_tuning(device.capabilities)
    recorder = Recorder(device, upload_weights(device, arrays), rows, scratch, tuning)
    values: dict[str, Value] = {
        name: recorder.input(name, array.dtype, (rows, *array.shape[1:])) for name, array in inputs.items()
    }
    return recorder.finish(says(recorder, named(arrays), **values)), scratch


def run_plan(plan: Plan, scratch: Scratch, inputs: Arrays, rows: int) -> dict[str, np.ndarray]:
    """One replay over poisoned memory: what is not written reads as NaN."""
    for buffer in scratch.buffers:
        plan.device.write(buffer, np.full(buffer.nbytes // 4, POISON, np.uint32))
    plan.run(rows, {name: array[:rows] for name, array in inputs.items()})
    return {name: plan.read(name, rows) for name in plan.outputs}


def on_gpu(
    device: Device, says: Says, arrays: Arrays, inputs: Arrays, rows: int, tuning: Tuning | None = None
) -> dict[str, np.ndarray]:
    """What the GPU says for all of `inputs`, in a plan made for `rows` rows."""
    plan, scratch = record(device, says, arrays, inputs, rows, tuning)
    return run_plan(plan, scratch, inputs, len(next(iter(inputs.values()))))


def on_cpu(says: Says, arrays: Arrays, inputs: Arrays) -> dict[str, np.ndarray]:
    """What the reference says."""
    reference = Reference({name: array.astype(np.float32) for name, array in arrays.items()})
    return says(reference, named(arrays), **inputs)
