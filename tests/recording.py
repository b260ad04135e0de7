"""Runs what a model says on the GPU, for tests: records, poisons, replays, reads."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan
from rwkv_gpu.gpu.tuning import Tuning, default_tuning
from rwkv_gpu.gpu.weights import upload_weights
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.recording import Scratch, Value
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import Weight

POISON = 0xFFFFFFFF  # NaN as a float, out of range as an index

Arrays = Mapping[str, np.ndarray]
Says = Callable[..., dict[str, Any]]  # (ops, weights, **inputs) -> outputs


def tunings(device: Device) -> dict[str, Tuning]:
    """Every way this device can spread work over lanes."""
    can = device.capabilities
    ways = {"workgroup": Tuning(row_lanes=64, map_lanes=64, reduce="workgroup"), "default": default_tuning(can)}
    if can.subgroup:
        ways["subgroup"] = Tuning(row_lanes=4 * can.subgroup_size, map_lanes=32, reduce="subgroup")
        ways["one_subgroup"] = Tuning(row_lanes=can.subgroup_size, map_lanes=32, reduce="one_subgroup")
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
