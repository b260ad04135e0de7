"""Trials of compressed attention: keys of a window, and entries that each stand for several positions."""

from collections.abc import Iterator
from typing import Any

from ...gpu.device import Capabilities
from ...kernels.attention import HALF_PAGES
from ...kernels.defaults import default_tuning
from ...kernels.kernel import CLOSE
from ...ops.kv_format import KV_FORMATS, KVType
from ...ops.vocabulary import PAGE, Attention, Cache, KeyIndex, Rope
from ..trials import Past, Stored, Trial
from .common import normal
from .latent import rows_of

HEADS, SIZE = 6, 32
NEAR = Cache("near", 1, SIZE, SIZE, 24)
TRIALS: tuple[tuple[str, KVType, str, int], ...] = (  # op, format, step, positions of an entry
    ("write_entries", "f32", "next chunk", 0),
    ("compress", "f32", "prefill", 4),
    ("compress", "f16", "next chunk", 128),
    ("compressed_attention", "f32", "long decode", 4),
    ("compressed_attention", "f16", "next chunk", 4),
    ("compressed_attention", "f32", "long decode", 128),
)


def cases(can: Capabilities) -> Iterator[Trial]:
    """Trials of each op in both cache formats, in prompts and in decode."""
    tuning = default_tuning(can)
    for op, kind, step, ratio in TRIALS:
        yield _compressed(tuning, op, kind, step, ratio)
    batch, pages = rows_of("next chunk")
    past = Past(batch, {}, {"near": (normal(pages, PAGE, 1, SIZE),)})
    for back in (False, True):
        yield Trial(
            "turn_heads", "back" if back else "", "map", tuning,
            lambda g, _, x, back=back: g.turn_heads(x, HEADS, Rope("normal", 16, 1e4), NEAR, back=back),
            {"x": normal(batch.rows, HEADS * SIZE)}, {}, CLOSE.result, past,
        )  # fmt: skip


def _compressed(tuning: Any, op: str, kind: KVType, step: str, ratio: int) -> Trial:
    """Attention of six heads to a window, and to entries: the chosen ones of 4 positions, or all of 128."""
    (batch, pages), blocks = rows_of(step), 2 if ratio == 4 else 1
    wide, rope = 2 * blocks * SIZE, Rope("neox" if ratio == 4 else "normal", 16, 1e4)
    rows, entries = Cache("rows", 1, wide, wide, blocks * ratio), Cache("far", 1, SIZE, SIZE, stride=max(ratio, 1))
    dtype, each = KV_FORMATS[kind].dtype, PAGE // entries.step

    def compute(g: Any, w: Any, q: Any, key: Any, row: Any, by_head: Any) -> Any:
        chosen, how = None, Attention(HEADS, None, 0.2, NEAR.window, sinks=w["sinks"])
        g.write_entries(key, NEAR, rope)
        if ratio:
            g.write_entries(row, rows)
            mean = g.compress(rows, w["bias"], ratio)
            if op == "compress":
                return mean
            g.write_entries(mean, entries, rope)
        q = g.turn_heads(q, HEADS, rope, NEAR)
        if ratio == 4:
            chosen = g.choose_keys(q, None, by_head, entries, KeyIndex(HEADS, None, 5))
        return g.compressed_attention(q, NEAR, entries if ratio else None, how, chosen=chosen)

    widths = {"q": HEADS * SIZE, "key": SIZE, "row": wide, "by_head": HEADS}
    caches = {"near": (PAGE, SIZE), "rows": (PAGE, wide), "far": (each, SIZE)}
    return Trial(
        op, f"{step}, {kind}, entries of {ratio}", "default", tuning, compute,
        {name: normal(batch.rows, width, seed=i) for i, (name, width) in enumerate(widths.items())},
        {"sinks": Stored.of(normal(HEADS)), "bias": Stored.of(normal(max(ratio, 1) * blocks * SIZE))},
        (CLOSE if kind == "f32" else HALF_PAGES).result,
        Past(batch, {}, {
            name: (normal(pages, count, 1, width, seed=9 + i).astype(dtype),)
            for i, (name, (count, width)) in enumerate(caches.items())
        }, kind),
    )  # fmt: skip
