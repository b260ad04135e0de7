"""Trials of ops that process rows independently: elementwise ops, embedding rows, norms."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, get_args

import numpy as np

from ...gguf.formats import FORMATS
from ...gpu.device import Capabilities
from ...kernels.defaults import default_tuning, reductions
from ...kernels.kernel import CLOSE, EXACT
from ...ops.batch import Batch
from ...ops.vocabulary import (
    ACTIVATIONS,
    PAGE,
    Blocks,
    Cache,
    ClampedSwiglu,
    Columns,
    LayerNorm,
    NGrams,
    Pairing,
    Rms,
    Situ,
    StreamGates,
    Xielu,
)
from ..trials import Array, Compute, Past, Stored, Trial
from .common import F32, decode_batch, normal, read_on_units


def cases(can: Capabilities) -> Iterator[Trial]:
    """All trials of this module."""
    yield from _maps(can)
    yield from _embeddings(can)
    yield from _rows(can)


def _map(can: Capabilities, op: str, compute: Compute, what: str = "", **more: Any) -> Trial:
    """A trial of an op whose kernel has a lane for each element; `more` are further fields, and the inputs."""
    inputs = {name: more.pop(name) for name in [*more] if name not in Trial.__dataclass_fields__}
    return Trial(op, what, "map", default_tuning(can), compute, inputs, **more)


def _maps(can: Capabilities) -> Iterator[Trial]:
    """Ops that compute each number from some others, alike on every device or up to rounding."""
    trial, x, z = partial(_map, can), normal(3, 257), normal(3, 257, seed=1)
    rounded = partial(trial, allowed=EXACT.result)
    yield trial("add", lambda g, _, x, z: g.add(x, z), x=x, z=z)
    yield trial("mul", lambda g, _, x, z: g.mul(x, z), x=x, z=z)
    by = normal(3, 1)
    yield rounded("scale_rows", lambda g, _, x, by: g.scale_rows(x, by), x=x, by=by)
    yield rounded("scale_rows", lambda g, _, x, by, add: g.scale_rows(x, by, add=add), "added to", x=x, by=by, add=z)
    yield trial("row_matrix", lambda g, _, x, m: g.row_matrix(x, m), x=normal(3, 5), m=normal(3, 5 * 13, seed=2))
    yield trial("mean_parts", lambda g, _, x: g.mean_parts(x, 3), x=normal(3, 3 * 85), allowed=EXACT.result)
    yield rounded("signed_root", lambda g, _, x: g.signed_root(x, 0.01), x=x / 10)
    grams = NGrams(3, 2, (2**45 + 12345, 2**44 + 777, 2**63 + 9), (1009, 2**31 - 1, 77, 5), (0, 1009, 7, 2000), 2)
    numbers = np.repeat(np.array([[250000, 7, 9], [4, 3, 12], [1, 8, 0]], np.float32), 4, axis=1)
    yield trial("ngram_rows", lambda g, _, x: g.ngram_rows(x, grams), x=numbers)
    yield trial("token_numbers", lambda g, _, ids: g.token_numbers(ids), ids=np.array([0, 5, 250000], np.uint32))
    for then in ACTIVATIONS:
        yield rounded("activate", lambda g, _, x, then=then: g.activate(x, then), then, x=30 * x)
    yield trial("mul_columns", lambda g, _, x, z: g.mul_columns(x, z, 5), x=x, z=normal(3, 300))
    clamps, how = ClampedSwiglu(1.0, shift=0.5, bounds_activation=True), Xielu(0.7, 1.1, 0.5, -1e-6)
    yield rounded("gated", lambda g, _, x, z: g.gated(x, z, clamps), "clamped", x=3 * x, z=3 * z)
    within = Situ(1.5, 2.5)
    yield rounded("gated", lambda g, _, x, z: g.gated(x, z, within), "within limits", x=30 * x, z=30 * z)
    weights = {"by": Stored.of(normal(257, seed=2))}
    yield trial("scale_columns", lambda g, w, x: g.scale_columns(x, w["by"]), x=x, weights=weights)
    yield trial("shift_columns", lambda g, w, x: g.shift_columns(x, w["by"]), x=x, weights=weights)
    yield trial("scale", lambda g, _, x: g.scale(x, 0.3), x=x)
    yield trial("concat", lambda g, _, x, z: g.concat(x, z), x=x, z=normal(3, 64, seed=1))
    known = Columns("known", np.array([2, 40, 3, 99], np.uint32), 101)
    yield trial("scatter", lambda g, _, x: g.scatter(x, known), x=normal(3, 4))
    yield rounded("swish", lambda g, _, x: g.swish(x, 1.702), x=3 * x)
    yield rounded("gelu_erf", lambda g, _, x: g.gelu_erf(x), x=3 * x)
    yield rounded("xielu", lambda g, _, x: g.xielu(x, how), x=3 * x)
    yield rounded("clamp", lambda g, _, x: g.clamp(x, 0.5), x=x)
    yield rounded("clip", lambda g, _, x: g.clip(x, -0.5, 0.25), x=x)
    yield rounded("softcap", lambda g, _, x: g.softcap(x, 5.0), x=300 * x)
    yield from _moved(can)


def _moved(can: Capabilities) -> Iterator[Trial]:
    """Ops that move numbers or turn pairs of them."""
    trial = partial(_map, can)
    rounded, heads = partial(trial, allowed=EXACT.result), normal(3, 72)
    for size in (20, 32):
        yield trial("resize_heads", lambda g, _, x, size=size: g.resize_heads(x, 3, size), f"24 to {size}", x=heads)
    for pairing in get_args(Pairing):
        turned = lambda g, _, x, angles, pairing=pairing: g.turn(x, angles, 3, pairing)  # noqa: E731
        yield rounded("turn", turned, pairing, x=heads, angles=normal(3, 16, seed=1))
    halves = lambda g, _, x, angles: g.turn(x, angles, 6, "neox", 2)  # noqa: E731
    yield rounded("turn", halves, "by halves of heads", x=heads, angles=normal(3, 24, seed=1))
    cache, keys = Cache("kv", 1, 8), np.zeros((4, PAGE, 1, 8), np.float32)
    placed = Past(Batch.of([(0, 70, [0, 0, 0])]).placed({0: [2, 1]}), {}, {"kv": (keys, keys)}, "f32")
    yield rounded(
        "embed_positions", lambda g, w, x: g.add(x, g.embed_positions(w["p"], cache)), x=normal(3, 64),
        weights={"p": Stored.of(normal(90, 64, seed=1))}, past=placed,
    )  # fmt: skip
    blocks = Past(replace(Batch.of([(0, 0, [0] * 6), (1, 0, [0] * 6)]), outputs=(0, 8)))
    for kind in get_args(Blocks):
        picked = lambda g, _, x, kind=kind: g.pick_blocks(x, 4, kind)  # noqa: E731
        yield trial("pick_blocks", picked, kind, x=normal(12, 40), past=blocks)
    yield trial("pick", lambda g, _, x: g.pick(x), x=normal(4, 256), past=Past(decode_batch(4)))


def _embeddings(can: Capabilities) -> Iterator[Trial]:
    ids = {"ids": np.array([10, 0, 7, 7], np.uint32)}
    for fmt in FORMATS.values():
        weights = {"w": Stored.random(fmt, 11, 512)}
        yield Trial(
            "embed", fmt.name, "map", default_tuning(can), lambda g, w, ids: g.embed(w["w"], ids), ids, weights,
            EXACT.result,
        )  # fmt: skip
        yield Trial("embed", f"{fmt.name}, normed", "map", default_tuning(can), _normed, ids, weights | _norm(512))
    for (name, tuning), width in product(reductions(can).items(), (256, 257)):
        weights = {"w": Stored.random(F32, 11, width)} | _norm(width)
        yield Trial("embed", f"rows of {width}, normed", name, tuning, _normed, ids, weights, EXACT.result)
    yield Trial(
        "embed", "normed without bias", "map", default_tuning(can),
        lambda g, w, ids: g.embed(w["w"], ids, norm=LayerNorm(w["gain"], None, 1e-5)), ids, weights, EXACT.result,
    )  # fmt: skip
    yield Trial(
        "embed", "normed without weight", "map", default_tuning(can),
        lambda g, w, ids: g.embed(w["w"], ids, norm=LayerNorm(None, None, 1e-5)), ids, weights, EXACT.result,
    )  # fmt: skip


def _norm(width: int) -> dict[str, Stored]:
    return {"gain": Stored.of(normal(width, seed=1)), "shift": Stored.of(normal(width, seed=2))}


def _normed(g: Any, w: Mapping[str, Any], ids: Any) -> Any:
    return g.embed(w["w"], ids, norm=LayerNorm(w["gain"], w["shift"], 1e-5))


def _sum(g: Any, w: Mapping[str, Any], x: Any) -> Any:
    return g.rms_norm(x, w["gain"], 1e-6, add=x)


def _normed_sum(g: Any, w: Mapping[str, Any], x: Any) -> Any:
    return g.linear(_sum(g, w, x), w["m"], norm=Rms(w["shift"], 1e-6))


def _rows(can: Capabilities) -> Iterator[Trial]:
    """Reductions over rows, with widths that are multiples of four and others."""
    for (name, tuning), width in product(reductions(can).items(), (256, 257)):
        x, weights, what = normal(5, width) * 3 + 1, _norm(width), f"rows of {width}"
        how: dict[str, Any] = {"inputs": {"x": x}, "weights": weights, "allowed": EXACT.result}
        yield Trial("rms_norm", what, name, tuning, lambda g, w, x: g.rms_norm(x, w["gain"], 1e-6), **how)
        yield Trial(
            "rms_norm", f"{what}, scaled and added", name, tuning,
            lambda g, _, x: g.rms_norm(x, None, 1e-6, add=x, scale=0.25), **how,
        )  # fmt: skip
        yield Trial(
            "layer_norm", what, name, tuning, lambda g, w, x: g.layer_norm(x, w["gain"], w["shift"], 1e-5), **how
        )
        yield Trial(
            "layer_norm", f"{what}, without bias", name, tuning,
            lambda g, w, x: g.layer_norm(x, w["gain"], None, 1e-5), **how,
        )  # fmt: skip
        yield Trial(
            "layer_norm", f"{what}, without weight", name, tuning,
            lambda g, _, x: g.layer_norm(x, None, None, 1e-5), **how,
        )  # fmt: skip
        if width == 256:
            again = Trial("rms_norm", f"{what}, normed again", name, tuning, _sum, **how)
            yield from (replace(one, compute=_normed_sum) for one in read_on_units(again, width, can))
        yield Trial("excess", what, name, tuning, lambda g, _, x: g.excess(x, 0.7), {"x": x}, allowed=EXACT.result)
        yield Trial("softmax", what, name, tuning, lambda g, _, x: g.softmax(x), {"x": 9 * x}, allowed=CLOSE.result)
        yield Trial("argmax", what, name, tuning, lambda g, _, x: g.argmax(x), {"x": np.round(x)})


def streams(can: Capabilities) -> Iterator[Trial]:
    """Trials of several residual streams."""
    tuning, allowed = default_tuning(can), EXACT.result
    xs_of = {f"x{n}": normal(3, 132, seed=n) for n in range(4)}

    def predicted(g: Any, _: Any, coefs: Array, **xs: Array) -> Any:
        first, *others = g.predict_streams(list(xs.values()), coefs)
        return g.add(g.add(first, others[0]), g.mul(others[1], others[2]))

    def corrected(g: Any, _: Any, y: Array, coefs: Array, add: Array, **xs: Array) -> Any:
        [first] = g.correct_streams([xs["x0"]], y, coefs)
        _, second, third, last = g.correct_streams(list(xs.values()), y, coefs, add=add)
        return g.add(g.add(first, second), g.mul(third, last))

    coefs, rows = normal(3, 16, seed=5), {"y": normal(3, 132, seed=6), "add": normal(3, 132, seed=7)}
    yield Trial("predict_streams", "", "map", tuning, predicted, {"coefs": coefs} | xs_of, allowed=allowed)

    def gates(g: Any, w: Any, z: Array) -> Any:
        return g.add(*g.stream_gates(z, StreamGates(4, w["scales"], w["bias"], 1e-2, 2.0, 0.1)))

    def mixed(g: Any, w: Any, z: Array, x: Array, found: Array) -> Any:
        _, write, matrix = g.stream_gates(z, StreamGates(4, w["scales"], w["bias"], 1e-2, 2.0, iterations=3))
        return g.add_to_streams(x, found, write, matrix=matrix)

    for compute, count, more in ((gates, 8, {}), (mixed, 24, {"x": normal(3, 528), "found": rows["y"]})):
        weights = {"scales": Stored.of(normal(3 if more else 2)), "bias": Stored.of(normal(count, seed=1))}
        what = "a matrix between streams" if more else ""
        given = {"z": normal(3, count)} | more
        yield Trial("stream_gates", what, "map", tuning, compute, given, weights, CLOSE.result)
    added = {"x": normal(3, 528), "found": rows["y"], "gates": coefs[:, :4].copy()}
    yield Trial(
        "add_to_streams", "", "map", tuning, lambda g, _, x, found, gates: g.add_to_streams(x, found, gates), added,
        allowed=allowed,
    )  # fmt: skip
    inputs = {"coefs": coefs[:, :4].copy()} | rows | xs_of
    yield Trial("correct_streams", "", "map", tuning, corrected, inputs, allowed=allowed)
    for name, reduction in reductions(can).items():
        yield Trial(
            "match_length", "rows of 132", name, reduction, lambda g, _, x, z: g.match_length(x, z),
            {"x": normal(3, 132), "z": 7 * normal(3, 132, seed=1)}, allowed=allowed,
        )  # fmt: skip
