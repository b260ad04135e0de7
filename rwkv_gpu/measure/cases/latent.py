"""Trials of latent attention, and of products per head."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...gpu.device import Capabilities
from ...kernels.attention import HALF_PAGES
from ...kernels.defaults import default_tuning, reductions
from ...kernels.kernel import CLOSE
from ...kernels.registry import expert_trials
from ...kernels.tuning import Tuning
from ...ops.batch import Batch
from ...ops.kv_format import KV_FORMATS, KVType
from ...ops.vocabulary import PAGE, Attention, Cache, KeyIndex, LatentAttention, Rope, Temperature
from ..trials import Past, Stored, Trial
from .attention import STEPS, unlike_rows
from .common import BY_NAME, normal, read_on_units

POSITIONS: dict[str, tuple[Rope | None, Temperature | None]] = {
    "neighbours": (Rope("normal", 16, 10000.0), None),
    "halves, warm": (Rope("neox", 16, 10000.0), Temperature(0.5, 32, 1)),
    "no rope": (None, None),
}


# Without RoPE, the indexer gets integers as inputs. Many of its scores are then equal, which tests how ties are broken.
INDEXED: tuple[tuple[KVType, str, Rope | None], ...] = (
    ("f32", "prefill", Rope("neox", 16, 10000.0)),
    ("f32", "long decode", Rope("normal", 16, 10000.0)),
    ("f16", "next chunk", None),
)


BLOCKS = {
    "blocks for each KV head": KeyIndex(2, None, 3, block=16, by_head=True, recent=1),
    "blocks for all heads": KeyIndex(4, None, 10, block=4),
}


def cases(can: Capabilities) -> Iterator[Trial]:
    """Trials of position encodings in both cache formats, norms of latents, and expert kernels on heads."""
    for name, tuning in reductions(can).items():
        yield _attention(name, tuning, "f32", "prefill", "neighbours")
    tuning = default_tuning(can).changed(run_length=64)
    kinds: tuple[KVType, ...] = "f32", "f16"
    for kind in kinds:
        for position in POSITIONS:
            for step in (*STEPS, "unlike rows") if position == "neighbours" else ("next chunk",):
                yield _attention("default", tuning, kind, step, position)
    if tuning.attention.prompts_on_matrix_units:
        plain = tuning.changed(prompts_on_matrix_units=False)
        for step in (*STEPS, "unlike rows"):
            yield _attention("no matrix units", plain, "f16", step, "neighbours")
    for step in STEPS:
        yield _attention("default", tuning, "f16", step, "neighbours", window=24)
    for kind, step, rope in INDEXED:
        yield _chosen(tuning, kind, step, rope)
        yield _chosen(tuning, kind, step, rope, block=4)
        for what, how in BLOCKS.items():
            yield _chosen_blocks(tuning, kind, step, what, replace(how, rope=rope))
    for name, (_, config) in expert_trials(can).items():
        own = default_tuning(can).only_experts(config)
        yield _by_head(name, own, config.tolerance.result)
        if config.fragment:
            yield _by_head(f"{name}, rows that begin anywhere", own, config.tolerance.result, stride=78)
            yield from read_on_units(_by_head(name, own, config.tolerance.result, out=64), 3 * 64, can)
        if config.gathers_row:
            yield _joined(name, own.changed(run_length=64), config.tolerance.result)


def _joined(name: str, tuning: Tuning, allowed: float) -> Trial:
    """One row with a long context, whose runs the per-head product after attention reduces."""
    attends = _attention(name, tuning, "f32", "long decode", "no rope")

    def compute(g: Any, w: Any, **inputs: Any) -> Any:
        return g.head_linear(attends.compute(g, w, **inputs), w["v_up"])

    weights = {**attends.weights, "v_up": Stored.random(BY_NAME["Q8_0"], 6, 24, 32)}
    return replace(attends, op="head_linear", what="long decode", compute=compute, weights=weights, allowed=allowed)


def _attention(name: str, tuning: Tuning, kind: KVType, step: str, position: str, window: int = 0) -> Trial:
    """Six heads over latents of 48 dimensions, of which 16 are rotated."""
    heads, (batch, pages) = 6, rows_of(step)
    latents = normal(pages, PAGE, 1, 48, seed=1).astype(KV_FORMATS[kind].dtype)
    widths = {"q": heads * 32, "q_rope": heads * 40, "z": 48}

    def compute(g: Any, w: Any, q: Any, q_rope: Any, z: Any) -> Any:
        rope, temperature = POSITIONS[position]
        how = LatentAttention(heads, rope, 0.2, w["norm"], 1e-6, temperature)
        return g.latent_attention(q, q_rope, z, Cache("kv", 1, 48, 32, window), how)

    what = f"{step}, {kind}, {f'a window of {window}' if window else position}"
    return Trial(
        "latent_attention", what, name, tuning, compute,
        {n: normal(batch.rows, width, seed=i) for i, (n, width) in enumerate(widths.items())},
        {"norm": Stored.of(1 + normal(32) / 4)}, (CLOSE if kind == "f32" else HALF_PAGES).result,
        Past(batch, {}, {"kv": (latents,)}, kind),
    )  # fmt: skip


def _chosen(tuning: Tuning, kind: KVType, step: str, rope: Rope | None, block: int = 1) -> Trial:
    """Attention to 40 keys that an indexer of two heads chooses, alone or in blocks; then latents have no positions."""
    attends, heads, size = _attention("default", tuning, kind, step, "neighbours"), 2, 32
    assert attends.past, "there are earlier positions"
    widths = {"iq": heads * size, "ik": size, "iw": heads}
    given = {n: normal(attends.past.batch.rows, width, seed=7 + i) for i, (n, width) in enumerate(widths.items())}
    width, position = (48, "neighbours") if block == 1 else (32, "no rope")
    latents = tuple(np.ascontiguousarray(one[..., :width]) for one in attends.past.caches["kv"])
    keys = normal(len(latents[0]), PAGE, 1, size, seed=2)
    if rope is None:
        given, keys = {n: np.rint(x / 2) for n, x in given.items()}, np.rint(keys / 2)

    def compute(g: Any, w: Any, q: Any, q_rope: Any, z: Any, iq: Any, ik: Any, iw: Any) -> Any:
        how = LatentAttention(6, POSITIONS[position][0], 0.2, w["norm"], 1e-6, block=block)
        index = KeyIndex(heads, rope, 40 // block, block=block)
        chosen = g.choose_keys(iq, ik, iw, Cache("index", 1, size, size), index)
        return g.latent_attention(q, q_rope, z, Cache("kv", 1, width, 32), how, chosen=chosen)

    past = replace(attends.past, caches={"kv": latents, "index": (keys.astype(latents[0].dtype),)})
    inputs = {**attends.inputs, **given, "z": attends.inputs["z"][:, :width]}
    what = f"{step}, {kind}, {rope.pairing if rope else 'no'} rope{f', blocks of {block}' if block > 1 else ''}"
    return replace(attends, op="choose_keys", what=what, compute=compute, inputs=inputs, past=past)


def _chosen_blocks(tuning: Tuning, kind: KVType, step: str, what: str, how: KeyIndex) -> Trial:
    """Attention of six heads, with two KV heads, to blocks that an indexer chooses."""
    heads, size, (batch, pages) = 6, 64, rows_of(step)
    widths = {"q": heads * size, "k": 2 * size, "v": 2 * size, "iq": how.heads * 32, "ik": 32}
    inputs = {n: normal(batch.rows, width, seed=i) for i, (n, width) in enumerate(widths.items())}
    keys, values, index = (normal(pages, PAGE, *shape, seed=1) for shape in ((2, size), (2, size), (1, 32)))
    if how.rope is None:
        inputs |= {n: np.rint(inputs[n] / 2) for n in ("iq", "ik")}
        index = np.rint(index / 2)

    def compute(g: Any, _: Any, q: Any, k: Any, v: Any, iq: Any, ik: Any) -> Any:
        chosen = g.choose_keys(iq, ik, None, Cache("index", 1, 32, 32), how)
        return g.attention(q, k, v, Cache("kv", 2, size), Attention(heads, how.rope, size**-0.5), chosen=chosen)

    stored = [each.astype(KV_FORMATS[kind].dtype) for each in (keys, values, index)]
    return Trial(
        "choose_keys", f"{step}, {kind}, {what}", "default", tuning, compute, inputs, {},
        (CLOSE if kind == "f32" else HALF_PAGES).result,
        Past(batch, {}, {"kv": (stored[0], stored[1]), "index": (stored[2],)}, kind),
    )  # fmt: skip


def rows_of(step: str) -> tuple[Batch, int]:
    """The rows of a step, and the total pages."""
    if step not in STEPS:
        return unlike_rows()
    start, count = STEPS[step]
    pages = -(-(start + count) // PAGE)
    order = np.random.default_rng(1).permutation(pages + 2)[:pages].tolist()
    return Batch.of([(0, start, [0] * count)]).placed({0: order}), pages + 2


def _by_head(name: str, tuning: Tuning, allowed: float, stride: int = 80, out: int = 70) -> Trial:
    """Three heads, each with 64 of its columns."""
    return Trial(
        "head_linear", "Q8_0", name, tuning, lambda g, w, x: g.head_linear(x, w["w"]), {"x": normal(5, 3 * stride)},
        {"w": Stored.random(BY_NAME["Q8_0"], 3, out, 64)}, allowed,
    )  # fmt: skip
