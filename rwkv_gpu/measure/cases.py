"""What a device is tried by: every op, in every format and variant of its kernels that the device can run."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ..engine.device_sampling import draw_row
from ..engine.sampling_params import SamplingParams
from ..gguf.formats import FORMATS, Format
from ..gpu.device import Capabilities
from ..kernels.defaults import default_tuning
from ..kernels.tuning import COOP, MANY, Tuning
from ..ops.batch import Batch
from ..ops.vocabulary import ACTIVATIONS, PAGE, Attention, Cache, LayerNorm, Mixed, Rms, Rope, Routing, State
from .trials import Array, Draws, Past, Stored, Trial
from .variants import expert_configs, gemm_configs, tunings

BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
F32 = BY_NAME["F32"]
FLOATS = ("F32", "F16", "BF16")
SOME = ("F16", "Q4_K", "Q6_K")  # runs of 32 and 16, and floats
# Relative to the largest result: sums in another order; x or W as halves; x as integers.
EXACT, HALVES = 1e-5, 2e-3
INTEGERS = {"int16": 1e-4, "int8": 2e-2}
ROUNDED = 1e-4  # norms over sums over heads, exponentials of sums
CHOSEN = "as chosen"  # the variant of what is timed that the device would use
RAGGED = ((3, 0, 33), (0, 5, 1), (1, 9, 17), (2, 1, 2))  # slot, start, tokens


def cases(can: Capabilities, used: Tuning) -> Iterator[Trial]:
    """All of them, the simplest first."""
    yield from _maps(can)
    yield from _rows(can)
    yield from _products(can)
    yield from _recurrent(can)
    yield from _mixing(can)
    yield from _late(can)
    yield from _attention(can)
    yield from _mixtures(can)
    yield from _samples(can)
    yield from _speed(can, used)


def _maps(can: Capabilities) -> Iterator[Trial]:
    """Element by element, and rows of an embedding."""
    tuning, x, z = default_tuning(can), normal(3, 257), normal(3, 257, seed=1)
    yield Trial("add", "", "map", tuning, lambda g, _, x, z: g.add(x, z), {"x": x, "z": z})
    yield Trial("mul", "", "map", tuning, lambda g, _, x, z: g.mul(x, z), {"x": x, "z": z})
    for then in ACTIVATIONS:
        yield Trial(
            "activate",
            then,
            "map",
            tuning,
            lambda g, _, x, then=then: g.activate(x, then),
            {"x": 30 * x},
            allowed=EXACT,
        )
    ids = np.array([10, 0, 7, 7], np.uint32)
    for fmt in FORMATS.values():
        weights = {"w": Stored.random(fmt, 11, 512)}
        yield Trial(
            "embed", fmt.name, "map", tuning, lambda g, w, ids: g.embed(w["w"], ids), {"ids": ids}, weights, EXACT
        )
        norm = {"gain": Stored.of(normal(512, seed=1)), "shift": Stored.of(normal(512, seed=2))}
        yield Trial("embed", f"{fmt.name}, normed", "map", tuning, _embed_normed, {"ids": ids}, weights | norm, EXACT)


def _embed_normed(g: Any, w: Mapping[str, Any], ids: Any) -> Any:
    return g.embed(w["w"], ids, norm=LayerNorm(w["gain"], w["shift"], 1e-5))


def _rows(can: Capabilities) -> Iterator[Trial]:
    """What reduces over rows."""
    x = normal(5, 257) * 3 + 1
    weights = {"w": Stored.of(normal(257, seed=1)), "b": Stored.of(normal(257, seed=2))}
    for name, tuning in tunings(can).items():
        how: dict[str, Any] = {"inputs": {"x": x}, "weights": weights, "allowed": EXACT}
        yield Trial("rms_norm", "", name, tuning, lambda g, w, x: g.rms_norm(x, w["w"], 1e-6), **how)
        yield Trial("layer_norm", "", name, tuning, lambda g, w, x: g.layer_norm(x, w["w"], w["b"], 1e-5), **how)
        yield Trial("softmax", "", name, tuning, lambda g, _, x: g.softmax(x), {"x": 9 * x}, allowed=ROUNDED)
        yield Trial("argmax", "", name, tuning, lambda g, _, x: g.argmax(x), {"x": np.round(x)})


def _products(can: Capabilities) -> Iterator[Trial]:
    """Matrices in every format and kernel, then what may come before and after a product."""
    for name, shape in gemm_configs(can).items():
        tuning = default_tuning(can).only(shape)
        allowed = INTEGERS.get(shape.activations, HALVES if "f16" in name or shape is COOP else EXACT)
        rows = 70 if shape.tb > 16 else shape.tb + 1
        for fmt in FORMATS.values():
            w = {"w": Stored.random(fmt, 130, 512)}
            x = {"x": normal(rows, 512)}
            yield Trial("linear", fmt.name, name, tuning, lambda g, w, x: g.linear(x, w["w"]), x, w, allowed)
        for then in ACTIVATIONS:
            w = {"w": Stored.random(F32, 70, 96), "b": Stored.of(normal(70))}
            x = {"x": normal(rows, 96) / 4, "add": normal(rows, 70, seed=1)}
            yield Trial(
                "linear", f"then {then}", name, tuning,
                lambda g, w, x, add, then=then: g.linear(x, w["w"], then=then, bias=w["b"], add=add), x, w,
                max(10 * allowed, ROUNDED),
            )  # fmt: skip
        for format_name in SOME:
            w = {"w": Stored.random(BY_NAME[format_name], 90, 256), "gain": Stored.of(1 + normal(256) / 4)}
            yield Trial(
                "glu", f"norm, {format_name}", name, tuning,
                lambda g, w, x: g.glu(x, w["w"], "silu", norm=Rms(w["gain"], 1e-6)), {"x": normal(rows, 256)}, w,
                max(5 * allowed, ROUNDED),
            )  # fmt: skip


def _speed(can: Capabilities, used: Tuning) -> Iterator[Trial]:
    """Matrices large enough to tell which kernel is fast: the one that is chosen, against all others."""
    for name, rows in product(SOME, (1, 64)):
        w = {"w": Stored.random(BY_NAME[name], 2048, 2048)}
        x = {"x": normal(rows, 2048)}
        ways = {CHOSEN: used} | {kind: used.only(shape) for kind, shape in gemm_configs(can).items()}
        for kind, tuning in ways.items():
            what = f"{name}, {rows} row{'s' if rows > 1 else ''}"
            yield Trial("speed", what, kind, tuning, lambda g, w, x: g.linear(x, w["w"]), x, w, INTEGERS["int8"])


def _recurrent(can: Capabilities) -> Iterator[Trial]:
    """RWKV's ops over ragged segments, in prefill and in decode."""
    batches = {"prefill": RAGGED, "decode": tuple((slot, 7, 1) for slot in range(4))}
    for (name, tuning), (step, sequences) in product(tunings(can).items(), batches.items()):
        batch = Batch.of([(slot, start, [0] * count) for slot, start, count in sequences])
        width = 320
        weights = {"w": normal(width) + 1, "b": normal(width, seed=1), "mix": normal(6, width, seed=2)}
        shift = State("shift", (width,))
        yield Trial(
            "norm_shift_mix", step, name, tuning,
            lambda g, w, x, shift=shift: g.norm_shift_mix(x, w["w"], w["b"], 1e-5, w["mix"], shift)[5],
            {"x": normal(batch.rows, width, seed=3)}, {n: Stored.of(a) for n, a in weights.items()}, EXACT,
            Past(batch, {"shift": normal(4, width)}),
        )  # fmt: skip
        for size in (64, 128):
            yield _time_mix(name, tuning, step, batch, size)


def _mixing(can: Capabilities) -> Iterator[Trial]:
    """Products of one row that norm and mix what they read."""
    width, shift = 512, State("shift", (512,))
    vectors = {"w": normal(width) + 1, "b": normal(width, seed=1), "mix": normal(2, width, seed=2)}
    past = Past(Batch.of([(0, 7, [0])]), {"shift": normal(1, width)})
    for (name, shape), format_name in product(gemm_configs(can).items(), SOME):
        if shape.norms:
            weights = {n: Stored.of(a) for n, a in vectors.items()}
            yield Trial(
                "norm_shift_mix", f"in a product, {format_name}", name,
                replace(default_tuning(can).only(shape), fuses_token_shift=True),
                lambda g, w, x: g.linear(g.norm_shift_mix(x, w["w"], w["b"], 1e-5, w["mix"], shift)[1], w["m"]),
                {"x": normal(1, width, seed=3)}, weights | {"m": Stored.random(BY_NAME[format_name], 70, width)},
                INTEGERS.get(shape.activations, ROUNDED), past,
            )  # fmt: skip


def _time_mix(name: str, tuning: Tuning, step: str, batch: Batch, size: int) -> Trial:
    shape, wkv = (batch.rows, 3 * size), State("wkv", (3, size, size))
    inputs = {n: normal(*shape, seed=i) for i, n in enumerate(("r", "k", "v", "gate", "v_first"))}
    rates = {n: 1 / (1 + np.exp(-normal(*shape, seed=9 + i))) for i, n in enumerate(("a", "v_gate", "w"))}
    inputs |= {**rates, "w": np.exp(np.float32(-0.606531) * rates["w"])}
    vectors = normal(5, 3 * size)
    vectors[1] = np.abs(vectors[1])
    return Trial(
        "time_mix", f"{step}, heads of {size}", name, tuning,
        lambda g, weights, /, **x: g.time_mix(Mixed(**x), weights["vectors"], 64e-5, wkv),
        inputs, {"vectors": Stored.of(vectors)}, ROUNDED, Past(batch, {"wkv": normal(4, 3, size, size)}),
    )  # fmt: skip


def _late(can: Capabilities) -> Iterator[Trial]:
    """Decode from the LoRAs on, whose second halves a time mix may compute itself."""
    batch, width, outer = Batch.of([(slot, 7, [0]) for slot in range(4)]), 192, ("decay", "sigmoid", "none", "sigmoid")
    inputs = {n: normal(batch.rows, width, seed=i) for i, n in enumerate(("x", "r", "k", "v", "v_first"))}
    wkv, ranks = State("wkv", (3, 64, 64)), (96, 36, 160, 32)

    def says(g: Any, w: Any, x: Array, **rest: Array) -> Any:
        lows = g.linears([x] * 4, [w[f"down{i}"] for i in range(4)])
        made = g.linears(
            lows, [w[f"up{i}"] for i in range(4)], then=outer, bias=[w["bias"], w["bias"], None, w["bias"]]
        )
        mixed = Mixed(w=made[0], a=made[1], gate=made[2], v_gate=made[3], **rest)
        return g.time_mix(mixed, w["vectors"], 64e-5, wkv)

    for name in FLOATS:
        weights = {"vectors": Stored.of(np.abs(normal(5, width))), "bias": Stored.of(normal(width, seed=1))}
        for i, rank in enumerate(ranks):
            weights[f"down{i}"] = Stored.random(BY_NAME[name], rank, width, seed=i)
            weights[f"up{i}"] = Stored.random(BY_NAME[name], width, rank, seed=i)
        past = Past(batch, {"wkv": normal(4, 3, 64, 64)})
        yield Trial(
            "time_mix", f"decode with LoRAs, {name}", "", default_tuning(can), says, inputs, weights, ROUNDED, past
        )


def _attention(can: Capabilities) -> Iterator[Trial]:
    """Prompts, decode near the start of a context and far into it, by head size and kind of cache."""
    steps = {"prefill": (0, 70), "next chunk": (130, 70), "decode": (40, 1), "long decode": (700, 1)}
    tuning = default_tuning(can)
    for kind, size in (("f32", 64), ("f16", 64), ("f16", 80), ("f16", 128), ("f16", 256)):
        for step, (start, count) in steps.items():
            dtype, pages = {"f32": np.float32, "f16": np.float16}[kind], -(-(start + count) // PAGE)
            cache = Cache("kv", 2, size)
            order = np.random.default_rng(1).permutation(pages + 2)[:pages].tolist()
            held = [normal(pages + 2, PAGE, 2, size, seed=i).astype(dtype) for i in (1, 2)]
            batch = Batch.of([(0, start, [0] * count)]).placed({0: order})
            how = Attention(6, Rope("neox", size, 10000.0), size**-0.5)
            inputs = {n: normal(count, h * size, seed=i) for i, (n, h) in enumerate((("q", 6), ("k", 2), ("v", 2)))}
            yield Trial(
                "attention", f"{step}, heads of {size}", kind, tuning,
                lambda g, _, q, k, v, cache=cache, how=how: g.attention(q, k, v, cache, how),
                inputs, {}, ROUNDED if kind == "f32" else HALVES, Past(batch, {}, {"kv": (held[0], held[1])}, kind),
            )  # fmt: skip


def _mixtures(can: Capabilities) -> Iterator[Trial]:
    """Routing, and products with experts."""
    for name, tuning in tunings(can).items():
        for part in ("experts", "shares"):
            yield Trial(
                "route", part, name, tuning,
                lambda g, w, x, part=part: getattr(g.route(x, w["router"], 4, normalise=True), part),
                {"x": normal(5, 48)}, {"router": Stored.of(normal(64, 48, seed=1))}, ROUNDED,
            )  # fmt: skip
    rng = np.random.default_rng(0)
    chosen = np.array([rng.permutation(5)[:2] for _ in range(9)], np.uint32)
    inputs = {"x": normal(9, 256), "experts": chosen, "shares": rng.random((9, 2), np.float32)}
    for (name, shape), (_, fmt) in product(expert_configs(can).items(), BY_NAME.items()):
        if fmt.name not in SOME and shape != next(iter(expert_configs(can).values())):
            continue
        tuning = replace(default_tuning(can), experts=((MANY, shape),), experts_short=())
        allowed = 2 * INTEGERS["int16"] if shape.kernel == "moe/expert_gemv_int" else ROUNDED
        yield Trial("experts", fmt.name, name, tuning, _mixture, inputs, _experts(fmt), allowed)


def _experts(fmt: Format) -> dict[str, Stored]:
    shapes = {"gate": (5, 256, 256), "up": (5, 256, 256), "down": (5, 130, 256)}
    return {name: Stored.random(fmt, *shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}


def _mixture(g: Any, w: Any, x: Array, experts: Array, shares: Array) -> Any:
    routing = Routing(experts, shares)
    return g.expert_sum(g.expert_glu(x, w["gate"], w["up"], routing, "silu"), w["down"], routing)


def _samples(can: Capabilities) -> Iterator[Trial]:
    """Each common sampler, alone."""
    vocabulary, rows = 5000, 8
    samplers: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "temperature": {"temperature": 0.7},
        "top-k": {"top_k": 40},
        "top-p": {"top_p": 0.9},
        "min-p": {"min_p": 0.05},
        "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        "mask": {},
    }
    said = np.random.default_rng(3).integers(0, vocabulary, 40).tolist()
    for (name, tuning), (sampler, settings) in product(tunings(can).items(), samplers.items()):
        masked = sampler == "mask"
        params = SamplingParams(**settings)
        draws = np.stack([draw_row(params, 11 + row, row, masked=masked) for row in range(rows)])
        draws["tokens"] = len(said)
        words = np.random.default_rng(4).integers(0, 1 << 32, (rows, -(-vocabulary // 32)), np.uint32)
        yield Trial(
            "sample", sampler, name, tuning,
            lambda g, _, logits, masked=masked: g.sample(logits, how="masked" if masked else "any"),
            {"logits": 3 * normal(rows, vocabulary)}, columns=(0, 2),
            draws=Draws(draws, said, vocabulary, words if masked else None),
        )  # fmt: skip


def normal(*shape: int, seed: int = 0) -> Array:
    """Numbers of a bell curve, the same each time."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)
