"""Measures the CPU time to replay a dispatch and to record a plan.

    python -m benchmarks.dispatch [--device NAME] [--dispatches 500]

Encodes the same plan through raw handles and through wgpu-py's public API, alternating, and prints medians.
"""

import statistics
import time

import click
import numpy as np

from rwkv_gpu.gpu import native
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan
from rwkv_gpu.gpu.weights import upload_weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.vocabulary import Weight

from .opening import adapter_of


def record_chain(device: Device, length: int) -> Plan:
    """Records a plan of `length` dispatches whose pipelines alternate, as in a layer."""
    weights = {"norm": np.ones(64, np.float32)}
    recorder = Recorder(
        device, upload_weights(device, weights), 1, Scratch(device), default_tuning(device.capabilities)
    )
    x = recorder.input("x", np.float32, (1, 64))
    norm = Weight("norm", (64,))
    for step in range(length):
        x = recorder.rms_norm(x, norm, 1e-6) if step % 2 else recorder.activate(x, "tanh")
    return recorder.finish({"x": x})


def encode_public(plan: Plan):
    """Returns the commands of a step, encoded through wgpu-py's public API."""
    encoder = plan.device.handle.create_command_encoder()
    compute = encoder.begin_compute_pass()
    for dispatch, group in zip(plan.dispatches, plan.groups, strict=True):
        compute.set_pipeline(dispatch.pipeline.handle)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(*dispatch.grid)
    compute.end()
    return encoder.finish()


def per_dispatch(gpu: Device, encode, length: int) -> float:
    """Returns the microseconds per dispatch when a plan is encoded once."""
    start = time.perf_counter()
    encoded = encode()
    elapsed = time.perf_counter() - start
    gpu.unsubmitted.add(encoded)
    return elapsed / length * 1e6


def replay_only(plan: Plan, length: int) -> float:
    """Returns the microseconds per dispatch of the three raw calls alone, without wgpu's work at `finish`."""
    encoder = plan.device.handle.create_command_encoder()
    compute = encoder.begin_compute_pass()
    start = time.perf_counter()
    native.replay(compute, plan.program)
    elapsed = time.perf_counter() - start
    compute.end()
    plan.device.unsubmitted.add(encoder.finish())
    return elapsed / length * 1e6


@click.command()
@click.option("--device", default="auto")
@click.option("--dispatches", default=500)
@click.option("--repeats", default=50)
def main(device: str, dispatches: int, repeats: int) -> None:
    adapter = adapter_of(device)
    with Device(adapter) as gpu:
        record_chain(gpu, 2)  # compiles the pipelines
        start = time.perf_counter()
        plan = record_chain(gpu, dispatches)
        recording = time.perf_counter() - start
        plan.run(1, {"x": np.ones((1, 64))})
        times: dict[str, list[float]] = {"raw handles": [], "public API": [], "raw handles, before finish": []}
        for _ in range(repeats):
            times["raw handles"].append(per_dispatch(gpu, plan.encode, dispatches))
            times["public API"].append(per_dispatch(gpu, lambda: encode_public(plan), dispatches))
            times["raw handles, before finish"].append(replay_only(plan, dispatches))
        plan.device.read(plan.outputs["x"].place.buffer, 4)
    print(f"{adapter}, {dispatches} dispatches, {repeats} alternating repeats")
    for name, values in times.items():
        quartiles = statistics.quantiles(values)
        print(
            f"  encode by {name}: {quartiles[1]:.2f} µs a dispatch (quartiles {quartiles[0]:.2f} .. {quartiles[2]:.2f})"
        )
    print(f"  recording and bind groups with warm pipelines: {recording * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
