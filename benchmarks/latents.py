"""Attention over latents by every way to spread it: µs of a layer, writing, looking back and joining.

    python -m benchmarks.latents [--device NAME] [--matrix-units] [--heads 20] [--batch 1,16] [--depths 0,4096,32700]
    python -m benchmarks.latents --matrix-units --prompt 512 --depths 0,1536

Latents have 512 numbers and 64 that rotate, as those of GLM-4.7-Flash and DeepSeek. There are LAYERS layers of them.
Times are the GPU's own, the best of several replays.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import click
import numpy as np
import numpy.typing as npt

from benchmarks.attention import LAYERS, WARM
from rwkv_gpu.engine.cache.kv import SHORT_PAGES
from rwkv_gpu.gpu.adapters import choose, list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan, Slice
from rwkv_gpu.gpu.profile import lap
from rwkv_gpu.gpu.weights import upload_weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.memory import Caches, Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.vocabulary import PAGE, Cache, LatentAttention, Rope, Weight

LATENT, ROTARY, NOPE = 512, 64, 192


def ways(device: Device, prompt: bool) -> Iterator[tuple[str, Tuning]]:
    """Constants beside those in use."""
    default = default_tuning(device.capabilities)
    yield "as it is", default
    if device.capabilities.fragment:
        yield "without matrix units", replace(default, attention_on_matrix_units=False)
        yield "nothing loaded ahead", replace(default, latent_prefetch=1 - default.latent_prefetch)
        for run, groups in () if prompt else ((32, 256), (64, 128), (128, 128)):
            yield f"runs of {run}, {groups} groups", replace(default, latent_run=run, latent_groups=groups)
    elif not prompt:
        for run, groups in ((32, 256), (64, 512), (64, 256)):
            name = f"runs of {run}, {groups} groups"
            yield name, replace(default, attention_run=run, attention_groups=groups)


class Bench:
    """Layers of latents over pages of so many sequences, each with so many rows in a step."""

    def __init__(self, device: Device, heads: int, batch: int, context: int, rows: int) -> None:
        self.device, self.heads, self.batch, self.each = device, heads, batch, rows
        self.pages = -(-context // PAGE)
        nbytes = batch * self.pages * PAGE * (LATENT + ROTARY) * 2
        places = {f"kv{i}": (Slice(device.buffer(nbytes, "kv"), 0, nbytes),) for i in range(LAYERS)}
        self.caches = Caches(places, "f16", self.pages)
        self.weights = upload_weights(device, {"norm": np.ones(LATENT, np.float32)})

    @property
    def inputs_shape(self) -> dict[str, tuple[int, int]]:
        """Of what a layer is given."""
        widths = {"q": self.heads * LATENT, "q_rope": self.heads * (NOPE + ROTARY), "z": LATENT + ROTARY}
        return {name: (self.batch * self.each, width) for name, width in widths.items()}

    def record(self, tuning: Tuning, depth: int) -> Plan:
        """All layers, of the plan that an engine would take."""
        rows, short = self.batch * self.each, self.each == 1 and depth < SHORT_PAGES * PAGE
        caches = replace(self.caches, max_pages=SHORT_PAGES if short else self.pages)
        g = Recorder(
            self.device, self.weights, rows, Scratch(self.device), tuning,
            max_segments=self.batch, caches=caches, single=self.each == 1,
        )  # fmt: skip
        q, q_rope, z = (g.input(name, np.float32, shape) for name, shape in self.inputs_shape.items())
        rope = Rope("normal", ROTARY, 1e6)
        how = LatentAttention(self.heads, rope, (NOPE + ROTARY) ** -0.5, Weight("norm", (LATENT,)), 1e-6)
        caches_of = [Cache(f"kv{i}", 1, LATENT + ROTARY, LATENT) for i in range(LAYERS)]
        ys = [g.latent_attention(q, q_rope, z, cache, how) for cache in caches_of]
        return g.finish({f"y{i}": y for i, y in enumerate(ys)})

    def inputs(self, depth: int) -> dict[str, npt.ArrayLike]:
        """Of a step of all sequences that far."""
        used = -(-(depth + self.each) // PAGE)
        tables = {slot: list(range(slot * self.pages, slot * self.pages + used)) for slot in range(self.batch)}
        batch = Batch.of([(slot, depth, [0] * self.each) for slot in tables]).placed(tables)
        rng = np.random.default_rng(0)
        given = {name: rng.standard_normal(shape, np.float32) for name, shape in self.inputs_shape.items()}
        return {**given, **batch.arrays()}

    def seconds(self, plan: Plan, depth: int, warm: int) -> float:
        """Of a layer, behind others that keep the clocks up."""
        inputs, rows = self.inputs(depth), self.batch * self.each
        for _ in range(warm):
            plan.run(rows, inputs, self.batch)
        return lap(plan, rows, inputs, self.batch) / LAYERS


@click.command()
@click.option("--device", default="auto")
@click.option("--matrix-units", is_flag=True)
@click.option("--heads", default=20)
@click.option("--batch", default="1,16")
@click.option("--depths", default="0,256,4096,32700")
@click.option("--prompt", default=1, help="rows of each sequence in a step")
@click.option("--rounds", default=3)
def main(device: str, matrix_units: bool, heads: int, batch: str, depths: str, prompt: int, rounds: int) -> None:
    adapters = list_adapters()
    adapter = choose(adapters, device).adapter or next(a for a in adapters if a.backend == "Vulkan")
    depth = [int(one) for one in depths.split(",")]
    with Device(adapter, matrix_units=matrix_units) as gpu:
        print(adapter)
        for count in map(int, batch.split(",")):
            seen = [one for one in depth if count * one <= 1 << 17]
            print(f"\n{heads} heads, {prompt} rows of {count} sequences: µs of a layer by depth")
            compare(Bench(gpu, heads, count, max(seen) + prompt, prompt), seen, rounds)


def compare(bench: Bench, depths: list[int], rounds: int) -> None:
    """A line for each way: the best of rounds that take all in turns, with everything compiled before."""
    named = dict(ways(bench.device, bench.each > 1))
    plans = {name: {depth: bench.record(tuning, depth) for depth in depths} for name, tuning in named.items()}
    best = {name: dict.fromkeys(depths, 1.0) for name in plans}
    for turn, depth in itertools.product(range(rounds), depths):
        for name, by_depth in plans.items():
            warm = 2 if turn or bench.each > 1 else WARM
            best[name][depth] = min(best[name][depth], bench.seconds(by_depth[depth], depth, warm))
    looks = 2 * bench.heads * (2 * LATENT + ROTARY)
    rows = [bench.batch * bench.each * (depth + (bench.each + 1) / 2) for depth in depths]
    print(f"{'depth':40}" + "".join(f"{depth:10,}" for depth in depths))
    print(f"{'at 4,300 GB/s, read once':40}" + "".join(f"{1e6 * n / bench.each * 1152 / 4.3e12:10.1f}" for n in rows))
    print(f"{'at 400 TFLOP/s':40}" + "".join(f"{1e6 * n * looks / 4e14:10.1f}" for n in rows))
    for name, by_depth in best.items():
        print(f"{name:40}" + "".join(f"{1e6 * one:10.1f}" for one in by_depth.values()), flush=True)


if __name__ == "__main__":
    main()
