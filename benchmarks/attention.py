"""Attention in decode: µs of a layer by depth, with the tuning in use and with other values.

    python -m benchmarks.attention [--device NAME] [--matrix-units] [--heads 32/8/128,16/8/128] [--batch 1] [--kv f16]
    python -m benchmarks.attention --heads 64/8/64 --try decode_lanes=64 --try attention_run=32,decode_groups=512

Heads are those of queries, of keys, and their size. The defaults are of Llama 8B, Qwen3 0.6B, Qwen3-30B-A3B and
TinyLlama; 64/8/64 are of gpt-oss, 40/10/128 of Phi-4. There are LAYERS layers of keys and values; the answer of one is
the query of the next. Times are the GPU's own, the best of several replays. A line says where its answers differ from
those of the tuning in use by more than FAR.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import click
import numpy as np
import numpy.typing as npt

from rwkv_gpu.engine.cache.kv import SHORT_PAGES
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan, Slice
from rwkv_gpu.gpu.profile import lap
from rwkv_gpu.gpu.weights import Weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.kv_format import KV_FORMATS, KVType
from rwkv_gpu.ops.memory import Caches, Scratch
from rwkv_gpu.ops.recorder import Recorder, finish_together
from rwkv_gpu.ops.values import Value
from rwkv_gpu.ops.vocabulary import PAGE, Attention, Cache, Rope

from .opening import adapter_of

LAYERS = 8
WARM = 20  # replays before one is timed
DIFFERENT = 16  # pages that are not copies of another
FAR = 0.02  # relative to the largest


@dataclass(frozen=True)
class Heads:
    """Of a layer."""

    queries: int
    keys: int
    size: int

    @classmethod
    def parse(cls, text: str) -> "Heads":
        """32/8/128"""
        return cls(*map(int, text.split("/")))

    def position_bytes(self, kind: KVType) -> int:
        """Of a key and a value."""
        return 2 * self.keys * KV_FORMATS[kind].nbytes(self.size)


def variants(default: Tuning, changes: Sequence[str]) -> dict[str, Tuning]:
    """The tuning in use, and one for each change such as `decode_lanes=64,attention_run=32`."""
    found = {"as it is": default}
    for change in changes:
        tuning = default
        for pair in change.split(","):
            name, _, value = pair.partition("=")
            tuning = changed(tuning, name.split("."), int(value))
        found[change] = tuning
    return found


def changed(values: Any, path: Sequence[str], value: int) -> Any:
    """A frozen dataclass with another value in a field, or in a field of one of its fields."""
    name, *rest = path
    if name not in {field.name for field in fields(values)}:
        raise click.BadParameter(f"{type(values).__name__} has no '{name}'")
    return replace(values, **{name: changed(getattr(values, name), rest, value) if rest else value})


class Bench:
    """Layers of some heads over pages of so many sequences."""

    def __init__(
        self,
        device: Device,
        heads: Heads,
        batch: int,
        context: int,
        kind: KVType = "f16",
        window: int = 0,
        long: int = 0,
    ) -> None:
        self.device, self.heads, self.batch, self.window, self.long = device, heads, batch, window, long
        self.pages = context // PAGE
        self.position_bytes = heads.position_bytes(kind)
        pages = [_random_pages(heads, kind, batch * self.pages, seed) for seed in (0, 1)]
        buffers = [[device.upload(each, "kv") for each in pages] for _ in range(LAYERS)]
        places = {f"kv{i}": (Slice(k, 0, k.nbytes), Slice(v, 0, v.nbytes)) for i, (k, v) in enumerate(buffers)}
        self.caches = Caches(places, kind, self.pages)

    @property
    def rows(self) -> dict[str, tuple[int, int]]:
        """The shapes of what a layer is given."""
        widths = {"q": self.heads.queries, "k": self.heads.keys, "v": self.heads.keys}
        return {name: (self.batch, count * self.heads.size) for name, count in widths.items()}

    def close(self) -> None:
        """Frees the pages."""
        for stored in self.caches.places.values():
            for each in stored:
                each.buffer.free()

    def record(self, tuning: Tuning, pages: int) -> tuple[Recorder, dict[str, Value]]:
        """All layers, of a plan for sequences of so many pages."""
        heads, device = self.heads, self.device
        g = Recorder(
            device, Weights(device), self.batch, Scratch(device), tuning,
            max_segments=self.batch, caches=replace(self.caches, max_pages=pages), single=True,
        )  # fmt: skip
        y, *given = (g.input(name, np.float32, shape) for name, shape in self.rows.items())
        how = Attention(heads.queries, Rope("neox", heads.size, 1e6), heads.size**-0.5, self.window)
        for i in range(LAYERS):
            y = g.attention(y, *given, Cache(f"kv{i}", heads.keys, heads.size), how)
        return g, {"y": y}

    def positions(self, depth: int) -> list[int]:
        """How far each sequence is."""
        return [self.long or depth, *[depth] * (self.batch - 1)]

    def plan_pages(self, depth: int) -> int:
        """Of the plan that an engine would take."""
        return SHORT_PAGES if max(self.positions(depth)) < SHORT_PAGES * PAGE else self.pages

    def inputs(self, depth: int) -> dict[str, npt.ArrayLike]:
        """Of a step of all sequences that far."""
        positions = self.positions(depth)
        tables = {slot: [slot * self.pages + n for n in range(at // PAGE + 1)] for slot, at in enumerate(positions)}
        batch = Batch.of([(slot, at, [0]) for slot, at in enumerate(positions)]).placed(tables)
        rng = np.random.default_rng(0)
        given = {name: rng.standard_normal(shape, np.float32) for name, shape in self.rows.items()}
        return {**given, **batch.arrays()}

    def seconds(self, plan: Plan, depth: int) -> float:
        """Of a layer, behind others that keep the clocks up."""
        inputs = self.inputs(depth)
        for _ in range(WARM):
            plan.run(self.batch, inputs, self.batch)
        return lap(plan, self.batch, inputs, self.batch) / LAYERS


def _random_pages(heads: Heads, kind: KVType, count: int, seed: int) -> npt.NDArray[Any]:
    """Keys or values of so many pages, few of which differ."""
    x = np.random.default_rng(seed).standard_normal((DIFFERENT, PAGE, heads.keys, heads.size), np.float32)
    return KV_FORMATS[kind].store(x)[np.arange(count) % DIFFERENT].ravel()


@click.command()
@click.option("--device", default="auto")
@click.option("--heads", default="32/8/128,16/8/128,32/4/128,32/4/64")
@click.option("--batch", default="1,16")
@click.option("--depths", default="0,64,512,4096")
@click.option("--kv", default="f16", help="How keys and values are stored: f16, f32, q8, q4.")
@click.option("--window", default=0)
@click.option("--long", default=0, help="The position of the first sequence, if not that of the others.")
@click.option("--matrix-units", is_flag=True)
@click.option("--rounds", default=4)
@click.option("--try", "changes", multiple=True, metavar="NAME=N,...", help="Also measure with these tuning values.")
def main(
    device: str,
    heads: str,
    batch: str,
    depths: str,
    kv: str,
    window: int,
    long: int,
    matrix_units: bool,
    rounds: int,
    changes: tuple[str, ...],
) -> None:
    adapter = adapter_of(device)
    depth = [int(one) for one in depths.split(",")]
    with Device(adapter, matrix_units=matrix_units) as gpu:
        print(adapter)
        tunings = variants(default_tuning(gpu.capabilities), changes)
        several = itertools.product(map(Heads.parse, heads.split(",")), map(int, batch.split(",")), kv.split(","))
        for one, count, kind in several:
            print(f"\n{one}, batch {count}, {kind}: µs of a layer by depth")
            context = -(-(max(*depth, long) + 1) // PAGE) * PAGE
            bench = Bench(gpu, one, count, context, cast(KVType, kind), window, long)
            compare(bench, depth, rounds, tunings)
            bench.close()


def compare(bench: Bench, depths: list[int], rounds: int, tunings: Mapping[str, Tuning]) -> None:
    """A line for each tuning: the best of rounds that take all in turns, with everything compiled before."""
    cases = list(itertools.product(tunings, depths))
    recorded = [bench.record(tunings[name], bench.plan_pages(depth)) for name, depth in cases]
    plans = dict(zip(cases, finish_together(recorded), strict=True))
    best = dict.fromkeys(plans, 1.0)
    for _, (name, depth) in itertools.product(range(rounds), cases):
        best[name, depth] = min(best[name, depth], bench.seconds(plans[name, depth], depth))
    first = {depth: plans[next(iter(tunings)), depth].read("y", bench.batch) for depth in depths}
    seen = [sum(min(at + 1, bench.window or at + 1) for at in bench.positions(depth)) for depth in depths]
    print(f"{'depth':48}" + "".join(f"{depth:9,}" for depth in depths))
    print(f"{'MB read':48}" + "".join(f"{each * bench.position_bytes / 1e6:9.1f}" for each in seen))
    for name in sorted(tunings, key=lambda name: sum(best[name, depth] for depth in depths)):
        off = max(
            float(np.abs(plans[name, d].read("y", bench.batch) - y).max() / np.abs(y).max()) for d, y in first.items()
        )
        times = "".join(f"{1e6 * best[name, depth]:9.1f}" for depth in depths)
        print(f"{name:48}{times}" + ("" if off < FAR else f"  off by {off:.0%}"), flush=True)


if __name__ == "__main__":
    main()
