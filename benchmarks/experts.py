"""Mixtures of experts of one layer by every shape of kernel: µs of gate and up, of down and the sum, and of the sort.

    python -m benchmarks.experts [--device NAME] [--experts 128 --used 8 --width 2048 --inner 768] [--rows 1,16,512]

The sizes by themselves are those of Qwen3-30B-A3B. Experts are chosen evenly at random. Times are the GPU's own, the
best of several replays; the rate counts the experts' weights once for each expert that is chosen at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import click
import numpy as np

from rwkv_gpu.gguf.formats import FORMATS, Format
from rwkv_gpu.gpu.adapters import choose, list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.loader import Parameter, place_weights
from rwkv_gpu.gpu.plan import Plan
from rwkv_gpu.gpu.profile import lap, profile_plan
from rwkv_gpu.gpu.weights import Weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.expert_config import ExpertConfig
from rwkv_gpu.kernels.gemm_config import MANY
from rwkv_gpu.kernels.registry import expert_candidates
from rwkv_gpu.kernels.tuned import shown
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.vocabulary import Routing, Weight

WARM = 20  # replays before one is timed, which keep the clocks up
BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}


@dataclass(frozen=True)
class Sizes:
    """Of one layer."""

    experts: int
    used: int
    width: int
    inner: int


def load(device: Device, sizes: Sizes, fmt: Format) -> tuple[Weights, dict[str, Weight]]:
    """Matrices of zeros, laid as those of a file: what they mean does not change the time."""
    shapes = {
        "blk.0.gate": (sizes.experts, sizes.inner, sizes.width),
        "blk.0.up": (sizes.experts, sizes.inner, sizes.width),
        "blk.0.down": (sizes.experts, sizes.width, sizes.inner),
    }
    parameters = [Parameter(name, shape, (), fmt) for name, shape in shapes.items()]
    weights = place_weights(device, parameters, lambda nbytes, _: device.buffer(nbytes, "weights"))
    return weights, {name.removeprefix("blk.0."): Weight(name, shape) for name, shape in shapes.items()}


def record(
    device: Device, weights: Weights, named: Mapping[str, Weight], shape: ExpertConfig, sizes: Sizes, rows: int
) -> Plan:
    """Both ops, for choices that are given."""
    tuning = replace(default_tuning(device.capabilities), experts=((MANY, shape),), experts_short=())
    g = Recorder(device, weights, rows, Scratch(device), tuning)
    x = g.input("x", np.float32, (rows, sizes.width))
    chosen = (rows, sizes.used)
    routing = Routing(g.input("experts", np.uint32, chosen), g.input("shares", np.float32, chosen))
    h = g.expert_glu(x, named["gate"], named["up"], routing, "silu")
    return g.finish({"y": g.expert_sum(h, named["down"], routing, add=x)})


@click.command()
@click.option("--device", default="auto")
@click.option("--experts", default=128)
@click.option("--used", default=8)
@click.option("--width", default=2048)
@click.option("--inner", default=768)
@click.option("--formats", default="Q4_K")
@click.option("--rows", default="1,4,16,64,512")
@click.option("--tiles", default="1,2,4,8,32", help="Choices of one expert for a workgroup.")
@click.option("--replays", default=5)
def main(device: str, formats: str, rows: str, tiles: str, replays: int, **sizes: int) -> None:
    adapters = list_adapters()
    adapter = choose(adapters, device).adapter or next(a for a in adapters if a.backend == "Vulkan")
    layer = Sizes(**sizes)
    with Device(adapter) as gpu:
        print(f"{adapter}; {layer}")
        for name in formats.split(","):
            weights, named = load(gpu, layer, BY_NAME[name])
            for count in map(int, rows.split(",")):
                shapes = [shape for shape in expert_candidates(gpu.capabilities) if str(shape.tb) in tiles.split(",")]
                compare(gpu, weights, named, shapes, layer, count, BY_NAME[name], replays)


def compare(
    gpu: Device,
    weights: Weights,
    named: dict[str, Weight],
    shapes: Sequence[ExpertConfig],
    layer: Sizes,
    count: int,
    fmt: Format,
    replays: int,
) -> None:
    """A line for each shape."""
    rng = np.random.default_rng(0)
    chosen = rng.permuted(np.tile(np.arange(layer.experts, dtype=np.uint32), (count, 1)), axis=1)[:, : layer.used]
    inputs = {
        "x": np.ones((count, layer.width), np.float32),
        "experts": chosen,
        "shares": np.full(chosen.shape, 1 / layer.used, np.float32),
    }
    nbytes = len(np.unique(chosen)) * (
        2 * layer.inner * fmt.row_bytes(layer.width) + layer.width * fmt.row_bytes(layer.inner)
    )
    print(f"\n{fmt.name}, {count} rows, {count * layer.used / layer.experts:.2f} choices for each expert")
    default = default_tuning(gpu.capabilities).expert_config(count * layer.used / layer.experts, fmt.run)
    plans = {shape: record(gpu, weights, named, shape, layer, count) for shape in shapes}
    best: dict[ExpertConfig, dict[str, float]] = {shape: {} for shape in plans}
    for _, (shape, plan) in product(range(replays), plans.items()):
        for _ in range(WARM):
            plan.run(count, inputs)
        times = {row.name: row.seconds for row in profile_plan(plan, count, inputs, 1).steps} | {
            "all": lap(plan, count, inputs)
        }
        for name, seconds in times.items():
            best[shape][name] = min(best[shape].get(name, 1e9), seconds)
    for shape, steps in sorted(best.items(), key=lambda item: item[1]["all"]):
        total = steps.pop("all")
        mark = "*" if shape == default else " "
        parts = "  ".join(f"{step} {1e6 * seconds:.0f}" for step, seconds in steps.items())
        print(f" {mark} {shown(shape):46} {1e6 * total:9.1f} µs {nbytes / total / 1e9:7.1f} GB/s   {parts}", flush=True)


if __name__ == "__main__":
    main()
