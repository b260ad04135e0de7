"""Trials of attention: prompts, decode at the start of a context and far into it, by head size and cache format."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...gpu.device import Capabilities
from ...kernels.attention import BLOCK_PAGES, HALF_PAGES
from ...kernels.defaults import default_tuning
from ...kernels.gemm_config import UNLIMITED
from ...kernels.kernel import CLOSE
from ...kernels.tuning import Tuning
from ...ops.batch import Batch
from ...ops.kv_format import KV_FORMATS, KVType
from ...ops.vocabulary import PAGE, Attention, Cache, HeadNorms, LateTemperature, Rope, Temperature, Weight
from ..trials import Past, Stored, Trial
from .common import normal, read_on_units

STEPS = {"prefill": (0, 70), "next chunk": (130, 70), "decode": (40, 1), "long decode": (700, 1)}
SIZES: tuple[tuple[KVType, int, int], ...] = (
    ("f32", 64, 6),
    ("f16", 64, 6),
    ("f16", 64, 8),
    ("f16", 72, 4),
    ("f16", 128, 8),
    ("f16", 256, 6),
    ("q8", 64, 6),
    ("q8", 128, 8),
    ("q4", 128, 8),
)  # cache format, head size, number of query heads

UNLIKE = (1100, 3, 150)  # positions of the rows of a step; the first needs more runs than the others
UNITS = "matrix units"
CACHED, WRITTEN, BOUNDED = "turned norms, cached", "written before", "blocks of unequal lengths"
IMAGES = "behind a window, and ahead in images"
Option = Callable[[Attention, Mapping[str, Weight]], Attention]
OPTIONS: dict[str, Option] = {
    "capped, sinks, warm": lambda how, w: replace(
        how, softcap=1.5, sinks=w["sinks"], temperature=Temperature(0.5, 32, 1)
    ),
    "by distance, warm when late": lambda how, _: replace(how, alibi=8.0, temperature=LateTemperature(50)),
    "by relative position": lambda how, w: replace(how, biases=w["biases"]),
    "after the first": lambda how, _: replace(how, after_first=True),
    "chunked, unturned": lambda how, _: replace(how, chunk=100, rope=None, norms=HeadNorms(1e-6, v=True)),
    CACHED: lambda how, w: replace(how, norms=HeadNorms(1e-6, w["q_norm"], w["k_norm"], turned=True)),
    WRITTEN: lambda how, _: how,
}

BOTH_SIDES: dict[str, Option] = {
    "both sides, by distance": lambda how, _: replace(how, causal=False, alibi=8.0),
    "both sides, by relative position": lambda how, w: replace(how, causal=False, biases=w["biases"]),
    "both sides of a window": lambda how, _: replace(how, causal=False, window=24),
    "behind a window, and ahead": lambda how, _: replace(how, causal=False, ahead=True, window=24),
    IMAGES: lambda how, _: replace(how, causal=False, ahead=True, ends="ends", window=24),
    BOUNDED: lambda how, _: replace(how, causal=False, bounds="bounds"),
}


def cases(can: Capabilities) -> Iterator[Trial]:
    """Trials of each decode variant: a key per lane and, if lanes can shuffle, several lanes per key."""
    plain = default_tuning(can)
    ways = {"own keys": plain.changed(lanes_per_key=0, run_length=64)}
    if can.subgroup:
        shared = plain.changed(lanes_per_key=8, decode_lanes=max(64, can.subgroup_width), run_length=64)
        ways["shared keys"] = shared.changed(last_workgroup_reduces=False)
        if can.coherent:
            ways["shared keys, last workgroup joins"] = shared.changed(last_workgroup_reduces=True)
    if can.fragment:
        ways[UNITS] = plain.changed(
            matrix_decode_positions=1, matrix_decode_sharing=1, matrix_decode_head_size=UNLIMITED
        )
    for name, tuning in ways.items():
        for kind, size, heads in SIZES:
            for step, (start, count) in STEPS.items():
                if (count == 1 and (kind == "f16" or name != UNITS)) or name == "own keys":
                    for normed in (False, True):
                        yield _trial(name, tuning, kind, size, heads, step, start, count, normed)
        for step, (start, count) in STEPS.items():
            if count == 1:
                yield _surrounded(name, tuning, step, start, on_units=name == UNITS)
                yield from read_on_units(_trial(name, tuning, "f16", 64, 6, step, start, 1, False), 6 * 64, can)
        yield _unlike(name, tuning)
        for what, option in OPTIONS.items():
            for step, (start, count) in STEPS.items():
                if count == 1 or name == "own keys":
                    yield _trial(name, tuning, "f16", 64, 6, step, start, count, True, what, option)
        for what, option in BOTH_SIDES.items():
            if name in ("own keys", UNITS):
                stored: KVType = "f16" if name == UNITS else "f32"
                yield _trial(name, tuning, stored, 64, 6, "whole text", 0, 150, False, what, option)
    if can.fragment:
        yield _trial(UNITS, plain, "f16", 64, 6, "few rows in runs", 700, 30, True)
        yield _trial(UNITS, plain, "f16", 72, 6, "fragments that are not full", 130, 70, True)


def blocks_of(lengths: Sequence[int]) -> npt.NDArray[np.float32]:
    """Bounds of rows that see the rows of their own block. [T, 2]"""
    ends = np.cumsum(lengths)
    return np.repeat(np.stack([ends - lengths, ends], axis=1), lengths, axis=0).astype(np.float32)


def unlike_rows() -> tuple[Batch, int]:
    """One row of each of several sequences of different lengths, and the total pages."""
    each = [-(-(position + 1) // PAGE) for position in UNLIKE]
    order = np.random.default_rng(1).permutation(sum(each) + 2).tolist()
    tables = {slot: order[sum(each[:slot]) : sum(each[: slot + 1])] for slot in range(len(each))}
    return Batch.of([(slot, position, [0]) for slot, position in enumerate(UNLIKE)]).placed(tables), sum(each) + 2


def _unlike(name: str, tuning: Tuning) -> Trial:
    """Six query heads and two KV heads, with rows of different lengths."""
    heads, size, (batch, pages) = 6, 64, unlike_rows()
    cache, how = Cache("kv", 2, size), Attention(heads, Rope("neox", size, 10000.0), size**-0.5)
    past = [KV_FORMATS["f16"].store(normal(pages, PAGE, 2, size, seed=i)) for i in (1, 2)]
    inputs = {n: normal(len(UNLIKE), h * size, seed=i) for i, (n, h) in enumerate((("q", heads), ("k", 2), ("v", 2)))}
    return Trial(
        "attention", "decode of unlike rows", name, tuning, lambda g, _, q, k, v: g.attention(q, k, v, cache, how),
        inputs, {}, HALF_PAGES.result, Past(batch, {}, {"kv": (past[0], past[1])}, "f16"),
    )  # fmt: skip


def _surrounded(name: str, tuning: Tuning, step: str, start: int, *, on_units: bool) -> Trial:
    """Decode with norms over all heads of q and k before it, and gates after it, both fused into attention.

    On matrix units, norms are not fused.
    """
    kind: KVType = "f16" if on_units else "f32"
    width, heads, size, pages = 64, 6, 32, -(-(start + 1) // PAGE)
    cache, how = Cache("kv", 2, size), Attention(heads, Rope("neox", size, 10000.0), size**-0.5)
    rows = {"q": heads * size, "k": 2 * size, "v": 2 * size, "gate": heads * size}
    matrices = {n: Stored.of(normal(m, width, seed=i) / 8) for i, (n, m) in enumerate(rows.items())}
    norms = {f"{n}_norm": Stored.of(1 + normal(rows[n], seed=9) / 4) for n in "qk"}
    past = [KV_FORMATS[kind].store(normal(pages + 2, PAGE, 2, size, seed=i)) for i in (1, 2)]
    order = np.random.default_rng(1).permutation(pages + 2)[:pages].tolist()

    def compute(g: Any, w: Any, x: Any) -> Any:
        q, k, v, gate = g.linears([x] * 4, [w[n] for n in rows], then=["none", "none", "none", "sigmoid"])
        if not on_units:
            q, k = (g.rms_norm(y, w[f"{n}_norm"], 1e-6) for n, y in (("q", q), ("k", k)))
        return g.mul(g.attention(q, k, v, cache, how), gate)

    return Trial(
        "attention", f"{step}, {'normed whole, ' * (not on_units)}gated", name, tuning, compute,
        {"x": normal(1, width)}, matrices | norms, (CLOSE if kind == "f32" else HALF_PAGES).result,
        Past(Batch.of([(0, start, [0])]).placed({0: order}), {}, {"kv": (past[0], past[1])}, kind),
    )  # fmt: skip


def _trial(
    name: str,
    tuning: Tuning,
    kind: KVType,
    size: int,
    heads: int,
    step: str,
    start: int,
    count: int,
    normed: bool,
    what: str = "",
    option: Option | None = None,
) -> Trial:
    """One trial. With head norms, rotary pairs are adjacent; without, half a head apart."""
    fmt, pages = KV_FORMATS[kind], -(-(start + count) // PAGE)
    cache, order = Cache("kv", 2, size), np.random.default_rng(1).permutation(pages + 2)[:pages].tolist()
    past = [fmt.store(normal(pages + 2, PAGE, 2, size, seed=i)) for i in (1, 2)]
    inputs = {n: normal(count, h * size, seed=i) for i, (n, h) in enumerate((("q", heads), ("k", 2), ("v", 2)))}
    rope = Rope("normal" if normed else "neox", size, 10000.0)

    def compute(g: Any, w: Any, q: Any, k: Any, v: Any, **_: Any) -> Any:
        norms = HeadNorms(1e-6, w["q_norm"], w["k_norm"]) if normed else None
        how = Attention(heads, rope, size**-0.5, norms=norms)
        how = option(how, w) if option else how
        if what == WRITTEN:
            g.write_keys(k, v, cache, how)
            return g.attention(q, None, None, cache, how)
        y = g.attention(q, k, v, cache, how)
        return g.add(y, g.attention(q, None, None, cache, how)) if what == CACHED else y

    blocks = blocks_of((1, 40, 7, 64, 3, 35))
    given = {BOUNDED: {"bounds": blocks}, IMAGES: {"ends": blocks[:, 1:]}}.get(what, {})
    weights = {n: Stored.of(1 + normal(size, seed=i) / 4) for i, n in enumerate(("q_norm", "k_norm"))}
    weights |= {"sinks": Stored.of(normal(heads)), "biases": Stored.of(2 * normal(32 * heads, seed=3))}
    batch = replace(Batch.of([(0, start, [0] * count)]).placed({0: order}), extra_inputs=given)
    named = ", ".join(filter(None, (step, f"{heads} heads of {size}", kind, "normed" * normed, what)))
    return Trial(
        "write_keys" if what == WRITTEN else "attention", named, name, tuning, compute, inputs | given,
        weights, (BLOCK_PAGES if fmt.quantised else CLOSE if kind == "f32" else HALF_PAGES).result,
        Past(batch, {}, {"kv": (past[0], past[1])}, kind),
    )  # fmt: skip
