"""Times matrix kernels of every shape and format: microseconds, GB/s of weights and GFLOP/s of a dispatch that waits
for the previous one, compared with the device's memory bandwidth and its rate of multiply-adds in registers.

    python -m benchmarks.linear [--device NAME] [--out 2560 --width 2560] [--formats Q4_K,F16] [--rows 1,64]
        [--matrix-units] [--kernels gemm_matrix,skinny_gemm]

A plan multiplies one x by many copies of a matrix, more than a cache holds, each after the other; plans are submitted
back to back until the GPU's clocks are up. The best round counts. --apart gives each product a separate output, so
that dispatches may overlap: this time shows the throughput, and the difference is the cost of waiting.
"""

import time

import click
import numpy as np

from rwkv_gpu.cli.options import numbers
from rwkv_gpu.gguf.formats import FORMATS, Format
from rwkv_gpu.gpu import native
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan
from rwkv_gpu.gpu.weights import DeviceWeight, Weights, as_shard, layout, upload_tensor
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.gemm_config import GemmConfig
from rwkv_gpu.kernels.registry import gemm_candidates
from rwkv_gpu.kernels.tuned import shown
from rwkv_gpu.measure.roofline import measure_roofline
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.vocabulary import Weight

from .opening import adapter_of

BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
# Seconds of rounds: while the CPU compiles a kernel, an H200's clock falls from 1,980 to 345 MHz, and rises slowly.
WARM = 0.4


def load(device: Device, fmt: Format, out: int, width: int, copies: int) -> Weights:
    """Makes matrices of random bytes. Their values do not change the time."""
    weights, where = Weights(device), layout(fmt, out, width)
    raw = np.random.default_rng(0).integers(0, 60, (out, fmt.row_bytes(width)), np.uint8)
    first = upload_tensor(device, fmt, raw, (out, width))
    weights.add("w0", first)
    for i in range(1, copies):
        buffer = device.buffer(where.nbytes, "weights")
        device.copy(first.shards[0].slice.buffer, 0, buffer, 0, where.nbytes)
        weights.add(f"w{i}", DeviceWeight(fmt, (out, width), (as_shard(buffer, 0, fmt, 0, out, where),)))
    return weights


def record(device: Device, weights: Weights, shape: GemmConfig, rows: int, apart: bool) -> Plan:
    tuning = default_tuning(device.capabilities).only(shape)
    recorder = Recorder(device, weights, rows, Scratch(device), tuning)
    out, width = weights["w0"].shape
    x = y = recorder.input("x", np.float32, (rows, width))
    ys = {}
    for name in weights:
        y = recorder.linear(x, Weight(name, (out, width)), add=y if y is not x and not apart else None)
        ys[name] = y
    return recorder.finish(ys if apart else {"y": y})


def seconds(plan: Plan, products: int, rows: int, busy: float) -> float:
    """Returns the time of one product with all its dispatches on a warm GPU; x is rounded once for all repetitions."""
    width = plan.step.slice("x").nbytes // (4 * plan.rows)
    plan.step.write(rows, {"x": np.random.default_rng(1).standard_normal((rows, width), np.float32)})

    def run(times: int) -> float:
        commands = [plan.encode() for _ in range(times)]
        start = time.perf_counter()
        plan.device.submit(commands)
        native.wait(plan.device.handle)
        return (time.perf_counter() - start) / times

    run(1)
    times = max(1, min(200, int(busy / run(1))))
    best, end = float("inf"), time.perf_counter() + WARM
    while best == float("inf") or time.perf_counter() < end:
        best = min(best, run(times))
    return best / products


@click.command()
@click.option("--device", default="auto")
@click.option("--out", default=2560)
@click.option("--width", default=2560)
@click.option("--formats", default="F32,F16,Q8_0,Q6_K,Q4_K,Q4_0")
@click.option("--rows", type=numbers, default="1,4,64")
@click.option("--mib", default=256, help="Total size of the matrices, larger than any cache.")
@click.option("--busy", default=0.04, help="Seconds that each round takes.")
@click.option("--apart", is_flag=True)
@click.option("--matrix-units", is_flag=True, help="Open the device with them.")
@click.option("--kernels", default="", help="Candidate kernels to measure; by default all.")
def main(
    device: str,
    out: int,
    width: int,
    formats: str,
    rows: list[int],
    mib: int,
    busy: float,
    apart: bool,
    matrix_units: bool,
    kernels: str,
) -> None:
    adapter = adapter_of(device)
    with Device(adapter, matrix_units=matrix_units) as gpu:
        default = default_tuning(gpu.capabilities)
        roof = measure_roofline(gpu)
        print(f"{adapter}; W is {out} x {width}; us, GB/s, GFLOP/s of each format")
        print(f"streams {roof.bytes_per_second / 1e9:.1f} GB/s, multiplies {roof.flops_per_second / 1e9:.0f} GFLOP/s")
        for count in rows:
            print(f"\n{count} rows: {'kernel':48}", *(f"{name:>22}" for name in formats.split(",")), sep=" ")
            loaded = {}
            for name in formats.split(","):
                copies = min(64, (mib << 20) // (out * BY_NAME[name].row_bytes(width)))
                loaded[name] = load(gpu, BY_NAME[name], out, width, max(1, copies))
            packed = all(weights["w0"].shards[0].packed for weights in loaded.values())
            for shape in gemm_candidates(gpu.capabilities, count, "int8", packed):
                if kernels and shape.kernel.rpartition("/")[2] not in kernels.split(","):
                    continue
                cells = []
                for name, weights in loaded.items():
                    took = seconds(record(gpu, weights, shape, count, apart), len(weights), count, busy)
                    nbytes, flops = out * BY_NAME[name].row_bytes(width), 2 * out * width * count
                    cells.append(f"{took * 1e6:8.2f} {nbytes / took / 1e9:6.1f} {flops / took / 1e9:6.1f}")
                used = (default.gemm_config(count, out=out, width=width, packed=packed) for packed in (False, True))
                mark = "*" if shape in used else " "
                print(f"      {mark} {shown(shape):52}", *cells, sep=" ", flush=True)
                gpu.pipelines.clear()


if __name__ == "__main__":
    main()
