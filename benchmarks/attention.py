"""Attention in decode by every way to spread it: µs of a layer, looking back and joining, by how far it looks back.

    python -m benchmarks.attention [--device NAME] [--matrix-units] [--heads 32/8/128,16/8/128] [--batch 1] [--kv f16]
    python -m benchmarks.attention --heads 32/8/128 --batch 16 --depths 200 --long 30000 --only "as it is"

Heads are those of queries, of keys, and their size: those by themselves are of Llama 8B, Qwen3 0.6B, Qwen3-30B-A3B
and TinyLlama; 64/8/64 are of gpt-oss, 40/10/128 of Phi-4. There are LAYERS layers of keys and values; the answer of
one is the query of the next. With `--long` the first sequence is that far in place of as far as the others. Times are
the GPU's own, the best of several replays. Where the answers of a way differ from those of the first by more than FAR,
its line says so.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import click
import numpy as np
import numpy.typing as npt

from rwkv_gpu.engine.cache.kv import SHORT_PAGES
from rwkv_gpu.gpu.adapters import choose, list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan, Slice
from rwkv_gpu.gpu.profile import lap
from rwkv_gpu.gpu.weights import Weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.gemm_config import MANY
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.kv_format import KV_FORMATS, KVType
from rwkv_gpu.ops.memory import Caches, Scratch
from rwkv_gpu.ops.recorder import Recorder, finish_together
from rwkv_gpu.ops.values import Value
from rwkv_gpu.ops.vocabulary import PAGE, Attention, Cache, Rope

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


@dataclass(frozen=True)
class Way:
    """Lanes that share a key, and lanes in all; keys at a time; the least positions of a run; the most workgroups."""

    lanes_per_key: int = 16
    lanes: int = 128
    prefetch_depth: int = 4
    run: int = 64
    groups: int = 4096
    joins: bool = True

    def applied(self, tuning: Tuning) -> Tuning:
        """The constants that make it."""
        return replace(
            tuning, decode_lanes_per_key=self.lanes_per_key, decode_lanes=self.lanes,
            decode_prefetch=self.prefetch_depth, last_workgroup_joins=self.joins,
            attention_run=self.run, attention_groups=4096, decode_groups=self.groups,
        )  # fmt: skip

    def __str__(self) -> str:
        ends = "joined by the last" if self.joins else "joined by a dispatch"
        whole = f"{self.lanes} lanes, {self.lanes_per_key} a key, {self.prefetch_depth} at a time, runs of {self.run}"
        return f"{whole}, {self.groups} groups, {ends}"


@dataclass(frozen=True)
class UnitsWay:
    """On matrix units: the most workgroups."""

    groups: int

    def applied(self, tuning: Tuning) -> Tuning:
        """The constants that make it."""
        return replace(
            tuning, decode_matrix_least=1, decode_matrix_sharing=1, decode_matrix_size=MANY,
            decode_matrix_groups=self.groups,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"matrix units, {self.groups} groups"


UNITS = tuple(UnitsWay(groups) for groups in (1056, 2112, 4224))
WAYS = (
    Way(joins=False),
    *(Way(lanes=lanes) for lanes in (64, 256)),
    *(Way(prefetch_depth=prefetch_depth) for prefetch_depth in (2, 8)),
    *(Way(run=run) for run in (32, 128, 256)),
    *(Way(groups=groups) for groups in (512, 1024, 2048)),
    Way(lanes_per_key=8, prefetch_depth=2),
    Way(lanes=256, run=128),
    *(Way(lanes=lanes, prefetch_depth=8) for lanes in (64, 256)),
    Way(lanes=64, prefetch_depth=2),
    Way(lanes_per_key=8, prefetch_depth=4),
)


def ways(device: Device) -> Iterator[tuple[str, Tuning]]:
    """Constants beside those in use."""
    default = default_tuning(device.capabilities)
    yield "as it is", default
    for units in UNITS if device.capabilities.fragment else ():
        yield str(units), units.applied(default)
    for run in (64, 256):
        yield f"own keys, runs of {run}", replace(default, decode_lanes_per_key=0, attention_run=run)
    for way in WAYS:
        if (
            way.lanes % device.capabilities.subgroup_width == 0
            and way.lanes_per_key <= device.capabilities.subgroup_width
        ):
            yield str(way), way.applied(default)


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
@click.option("--long", default=0, help="How far the first sequence is, if not as far as the others.")
@click.option("--matrix-units", is_flag=True)
@click.option("--rounds", default=4)
@click.option("--only", default="", help="Ways whose name has one of these.")
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
    only: str,
) -> None:
    adapters = list_adapters()
    adapter = choose(adapters, device).adapter or next(a for a in adapters if a.backend == "Vulkan")
    depth = [int(one) for one in depths.split(",")]
    with Device(adapter, matrix_units=matrix_units) as gpu:
        print(adapter)
        several = itertools.product(map(Heads.parse, heads.split(",")), map(int, batch.split(",")), kv.split(","))
        for one, count, kind in several:
            print(f"\n{one}, batch {count}, {kind}: µs of a layer by depth")
            context = -(-(max(*depth, long) + 1) // PAGE) * PAGE
            bench = Bench(gpu, one, count, context, cast(KVType, kind), window, long)
            compare(bench, depth, rounds, only.split(","))
            bench.close()


def compare(bench: Bench, depths: list[int], rounds: int, only: list[str]) -> None:
    """A line for each way: the best of rounds that take all in turns, with everything compiled before."""
    several = [one for one in ways(bench.device) if any(part in one[0] for part in only)]
    recorded = [bench.record(tuning, bench.plan_pages(depth)) for _, tuning in several for depth in depths]
    plans = dict(zip(itertools.product((name for name, _ in several), depths), finish_together(recorded), strict=True))
    best = dict.fromkeys(plans, 1.0)
    for _, depth, (name, _) in itertools.product(range(rounds), depths, several):
        best[name, depth] = min(best[name, depth], bench.seconds(plans[name, depth], depth))
    first = {depth: plans[several[0][0], depth].read("y", bench.batch) for depth in depths}
    seen = [sum(min(at + 1, bench.window or at + 1) for at in bench.positions(depth)) for depth in depths]
    bound = [each * bench.position_bytes / 4.3e12 for each in seen]
    for name, seconds in {"depth": [d / 1e6 for d in depths], "at 4,300 GB/s": bound}.items():
        print(f"{name:72}" + "".join(f"{1e6 * one:9.1f}" for one in seconds))
    for name, _ in sorted(several, key=lambda one: sum(best[one[0], depth] for depth in depths)):
        off = max(
            float(np.abs(plans[name, d].read("y", bench.batch) - y).max() / np.abs(y).max()) for d, y in first.items()
        )
        times = "".join(f"{1e6 * best[name, depth]:9.1f}" for depth in depths)
        print(f"{name:72}{times}" + ("" if off < FAR else f"  off by {off:.0%}"), flush=True)


if __name__ == "__main__":
    main()
