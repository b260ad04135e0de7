"""Matrix kernels of every shape and format: GB/s of weights for one row, GFLOP/s for many.

    python -m benchmarks.linear [--device NAME] [--out 2560 --width 2560] [--formats Q4_K,F16] [--rows 1,64]

The rate at which the same device streams a buffer is measured in the same run. Times are the GPU's own, the best of
several replays; kernels alternate, so that noise falls on all.
"""

import click
import numpy as np

from rwkv_gpu.gguf.formats import FORMATS, Format
from rwkv_gpu.gpu.adapters import choose, list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan
from rwkv_gpu.gpu.tuned import shown
from rwkv_gpu.gpu.tuning import MANY, LinearShape, Tuning, default_tuning
from rwkv_gpu.gpu.weights import Weights, upload_tensor
from rwkv_gpu.measure.candidates import linear_shapes
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.recording import Scratch
from rwkv_gpu.ops.vocabulary import Weight

BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}


def record(device: Device, weights: Weights, shape: LinearShape, rows: int, out: int, width: int) -> Plan:
    tuning = Tuning(8, 64, "workgroup", ((MANY, shape),))
    recorder = Recorder(device, weights, rows, Scratch(device), tuning)
    x = recorder.input("x", np.float32, (rows, width))
    return recorder.finish({"y": recorder.linear(x, Weight("w", (out, width)))})


def load(device: Device, fmt: Format, out: int, width: int) -> Weights:
    """A matrix of random bytes: what they mean does not change the time."""
    weights = Weights(device)
    raw = np.random.default_rng(0).integers(0, 120, (out, fmt.row_bytes(width)), np.uint8)
    weights.add("w", upload_tensor(device, fmt, raw, (out, width)))
    return weights


def stream_rate(device: Device, nbytes: int) -> float:
    """GB/s at which the best kernel reads a float32 matrix of about so many bytes."""
    out = max(64, nbytes // (4 * 2560))
    weights = load(device, BY_NAME["F32"], out, 2560)
    return max(
        out
        * 2560
        * 4
        / record(device, weights, shape, 1, out, 2560).profile(1, {"x": np.ones((1, 2560))}, 5).seconds
        / 1e9
        for shape in linear_shapes(device.capabilities, 1)
    )


@click.command()
@click.option("--device", default="auto")
@click.option("--out", default=2560)
@click.option("--width", default=2560)
@click.option("--formats", default="F32,F16,Q8_0,Q6_K,Q4_K,Q4_0")
@click.option("--rows", default="1,4,64")
@click.option("--replays", default=5)
def main(device: str, out: int, width: int, formats: str, rows: str, replays: int) -> None:
    adapters = list_adapters()
    adapter = choose(adapters, device).adapter or next(a for a in adapters if a.backend == "Vulkan")
    with Device(adapter) as gpu:
        print(f"{adapter}; W is {out} x {width}")
        print(f"stream (best F32 matvec of 64 MiB): {stream_rate(gpu, 64 << 20):.2f} GB/s")
        default = default_tuning(gpu.capabilities)
        for count in map(int, rows.split(",")):
            print(f"\n{count} rows: {'kernel':36}", *(f"{name:>8}" for name in formats.split(",")), sep=" ")
            print(" " * 8 + ("GB/s of weights" if count == 1 else "GFLOP/s"))
            held = {name: load(gpu, BY_NAME[name], out, width) for name in formats.split(",")}
            for shape in linear_shapes(gpu.capabilities, count):
                cells = []
                for name, weights in held.items():
                    plan = record(gpu, weights, shape, count, out, width)
                    inputs = {"x": np.ones((count, width))}
                    best = min(plan.profile(count, inputs, 1).seconds for _ in range(replays))
                    nbytes = out * BY_NAME[name].row_bytes(width)
                    cells.append((nbytes if count == 1 else 2 * out * width * count) / best / 1e9)
                mark = "*" if shape == default.linear_shape(count) else " "
                label = shown(shape)
                print(f"      {mark} {label:43}", *(f"{cell:8.2f}" for cell in cells), sep=" ", flush=True)


if __name__ == "__main__":
    main()
