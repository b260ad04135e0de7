"""Runs a model function on the GPU for tests: records, poisons, replays, reads."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rwkv_gpu.gpu.device import Capabilities, Device
from rwkv_gpu.gpu.plan import Plan
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.gpu.weights import upload_weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.gemm_config import TILE, GemmConfig, GemmKernel
from rwkv_gpu.kernels.registry import gemm_trials
from rwkv_gpu.kernels.tuning import GemmLimits, Tuning
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.values import Value
from rwkv_gpu.ops.vocabulary import Weight

POISON = 0xFFFFFFFF  # NaN as a float, out of range as an index

Arrays = Mapping[str, np.ndarray]
Says = Callable[..., dict[str, Any]]  # (ops, weights, **inputs) -> outputs


# A device that can run every kernel but those for subgroups of another size.
ABLE = Capabilities(
    f16=True, subgroup=True, subgroup_size=8, subgroup_width=8, integer_dot=True, fragment=8,
    timestamps=True, timestamps_in_pass=True, coherent=True, main_memory=True, software=False,
    max_buffer=1 << 30, max_binding=1 << 30,
    max_storage_buffers=16, max_workgroup_memory=64 << 10, max_invocations=1024, max_workgroups=65535,
    offset_alignment=256,
)  # fmt: skip
# The kernel of every configuration that some device can run, by the name of the configuration.
KERNEL_OF: dict[str, GemmKernel] = {
    name: kernel
    for size in (8, 32)
    for name, (kernel, _) in gemm_trials(replace(ABLE, subgroup_size=size, subgroup_width=size)).items()
}


def gemm_configs(device: Device) -> dict[str, GemmConfig]:
    """Returns every kind of matrix kernel that this device can run, at several sizes."""
    return {name: config for name, (_, config) in gemm_trials(device.capabilities).items()}


def bare_tuning(config: GemmConfig, **values: Any) -> Tuning:
    """Returns a tuning for any device, with one kernel for matrix products and some other values."""
    return default_tuning(LIMITS["default"]).only(config).changed(**values)


def tunings(device: Device) -> dict[str, Tuning]:
    """Returns every way to distribute work over lanes on this device."""
    can = device.capabilities
    shapes = gemm_configs(device)
    ways = {"workgroup": bare_tuning(TILE).preferring((GemmLimits(2), shapes["gemv"]))}
    ways["default"] = default_tuning(can)
    if can.subgroup:
        ways["subgroup"] = bare_tuning(
            shapes["gemv_subgroups"], row_lanes=4 * can.subgroup_size, map_lanes=32, reduce="subgroup"
        )
        ways["one_subgroup"] = bare_tuning(
            shapes["gemv_subgroup"], row_lanes=can.subgroup_size, map_lanes=32, reduce="one_subgroup"
        )
    return ways


def named(arrays: Arrays) -> dict[str, Weight]:
    """Returns the weights as a model sees them."""
    return {name: Weight(name, array.shape) for name, array in arrays.items()}


def record(
    device: Device, says: Says, arrays: Arrays, inputs: Arrays, rows: int, tuning: Tuning | None = None
) -> tuple[Plan, Scratch]:
    """Returns the plan for up to `rows` rows; `inputs` give dtypes and the shapes of a row."""
    scratch = Scratch(device)
    tuning = tuning or default_tuning(device.capabilities)
    recorder = Recorder(device, upload_weights(device, arrays), rows, scratch, tuning)
    values: dict[str, Value] = {
        name: recorder.input(name, array.dtype, (rows, *array.shape[1:])) for name, array in inputs.items()
    }
    return recorder.finish(says(recorder, named(arrays), **values)), scratch


def run_plan(plan: Plan, scratch: Scratch, inputs: Arrays, rows: int) -> dict[str, np.ndarray]:
    """Replays a plan once over poisoned memory: values that are not written read as NaN."""
    for buffer in scratch.buffers:
        plan.device.write(buffer, np.full(buffer.nbytes // 4, POISON, np.uint32))
    plan.run(rows, {name: array[:rows] for name, array in inputs.items()})
    return {name: plan.read(name, rows) for name in plan.outputs}


def on_gpu(
    device: Device, says: Says, arrays: Arrays, inputs: Arrays, rows: int, tuning: Tuning | None = None
) -> dict[str, np.ndarray]:
    """Returns the GPU's results for all of `inputs`, from a plan for `rows` rows."""
    plan, scratch = record(device, says, arrays, inputs, rows, tuning)
    return run_plan(plan, scratch, inputs, len(next(iter(inputs.values()))))


def on_cpu(says: Says, arrays: Arrays, inputs: Arrays) -> dict[str, np.ndarray]:
    """Returns the results of the reference."""
    reference = Reference({name: array.astype(np.float32) for name, array in arrays.items()})
    return says(reference, named(arrays), **inputs)
