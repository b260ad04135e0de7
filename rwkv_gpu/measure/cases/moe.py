"""Trials of mixtures of experts: routing, and products with the chosen experts."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ...gguf.formats import Format
from ...gpu.device import Capabilities
from ...kernels.defaults import default_tuning, reductions
from ...kernels.expert_config import ExpertConfig, ExpertKernel
from ...kernels.kernel import CLOSE
from ...kernels.parts import FORMAT, UNIT_OF_ALL
from ...kernels.registry import expert_trials, gemm_trials
from ...ops.vocabulary import ClampedSwiglu, Gating, Glu, Rms, Routing, Situ
from ..trials import Array, Stored, Trial
from .common import BY_NAME, F32, SOME, normal

CLAMPS = ClampedSwiglu(1.0, 1.702, 1.0)


def cases(can: Capabilities) -> Iterator[Trial]:
    """All trials of this module."""
    yield from _routes(can)
    yield from _groups(can)
    known = set()
    for name, (kernel, config) in expert_trials(can).items():
        [hole] = [hole for hole in kernel.holes if hole.name == FORMAT.name]
        named = {part.removesuffix("_floats") for part in hole.parts}
        formats = [fmt for fmt in BY_NAME.values() if f"formats/{fmt.shader}" in named]
        every = kernel.name not in known
        known.add(kernel.name)
        for fmt in formats:
            if every or fmt.name in SOME:
                yield from _products(can, name, config, fmt, more=fmt.name == "Q4_K")
        yield from _ways(can, name, kernel, config, formats)


def _gatings(w: Any) -> dict[str, Gating]:
    """Every way to choose experts from logits."""
    return {
        "softmax": Gating(4, normalise=True),
        "late softmax": Gating(4, "late_softmax", bias=w["bias"]),
        "sigmoid, biased": Gating(4, "sigmoid", normalise=True, scale=2.5, selection_bias=w["bias"]),
        "softmax, biased": Gating(4, selection_bias=w["bias"]),
        "sigmoid, answers scaled": Gating(4, "sigmoid", logit_scale=0.5, answer_scale=w["scales"]),
        "root of softplus": Gating(4, "sqrt_softplus", normalise=True),
        "root of softplus, biased": Gating(4, "sqrt_softplus", scale=1.5, selection_bias=w["bias"]),
        "sigmoid, groups": Gating(4, "sigmoid", groups=2, groups_used=1),
    }


def _routes(can: Capabilities) -> Iterator[Trial]:
    """Routing without groups: with few experts, and with more than are ranked at once."""
    for (name, tuning), part, count in product(reductions(can).items(), ("experts", "shares"), (64, 1030)):
        weights = {
            "router": Stored.of(normal(count, 48, seed=1)), "bias": Stored.of(normal(count, seed=2)),
            "scales": Stored.of(normal(count, seed=3)),
        }  # fmt: skip
        some = "softmax", "late softmax", "sigmoid, answers scaled", "root of softplus"
        for what in some if count > 64 else _gatings(weights):
            yield Trial(
                "route", f"{part} of {count}, {what}", name, tuning,
                lambda g, w, x, what=what, part=part: getattr(g.route(x, w["router"], _gatings(w)[what]), part),
                {"x": normal(5, 48)}, weights, CLOSE.result,
            )  # fmt: skip


def _groups(can: Capabilities) -> Iterator[Trial]:
    """Trials of both results of a grouped routing, and of known experts: expert ids and shares."""
    for part in ("experts", "shares"):
        yield Trial(
            "route_known", part, "map", default_tuning(can),
            lambda g, w, x, known, part=part: getattr(
                g.route_known(x, w["router"], Gating(3, "sqrt_softplus", normalise=True, scale=2.5), known), part
            ),
            {"x": normal(5, 48), "known": np.arange(20, dtype=np.float32).reshape(5, 4) % 7},
            {"router": Stored.of(normal(7, 48, seed=1))}, CLOSE.result,
        )  # fmt: skip
    chosen = {"experts": np.arange(10, dtype=np.uint32).reshape(5, 2), "shares": normal(5, 2)}
    for part in chosen:
        yield Trial(
            "by_group", part, "map", default_tuning(can),
            lambda g, _, experts, shares, part=part: getattr(g.by_group(Routing(experts, shares), 3, 0.3), part),
            chosen,
        )  # fmt: skip


def _experts(gate: Format, up: Format, width: int = 256) -> dict[str, Stored]:
    shapes = {"gate": (gate, 5, 256, width), "up": (up, 5, 256, width), "down": (gate, 5, 130, 256)}
    weights = {name: Stored.random(fmt, *shape, seed=i) for i, (name, (fmt, *shape)) in enumerate(shapes.items())}
    vectors = {"gain": 1 + normal(width) / 4, "bias": normal(5, seed=8), "scales": normal(5, seed=9)}
    vectors |= {"gate_bias": normal(1280, seed=3), "up_bias": normal(1280, seed=4), "down_bias": normal(650, seed=5)}
    both = Stored.random(gate, 5, 512, width, seed=6)
    made = {name: Stored.of(vector) for name, vector in vectors.items()}
    return (
        weights
        | made
        | {"both": both, "router": Stored.of(normal(5, width, seed=7)), "one": Stored.of(normal(1, width))}
    )


def _inputs(width: int = 256, rows: int = 9) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    chosen = np.array([rng.permutation(5)[:2] for _ in range(rows)], np.uint32)
    return {
        "x": normal(rows, width), "experts": chosen, "shares": rng.random((rows, 2), np.float32),
        "add": normal(rows, 130, seed=2),
    }  # fmt: skip


def _compute(normed: bool = False, added: bool = False) -> Any:
    def compute(g: Any, w: Any, x: Array, experts: Array, shares: Array, add: Array) -> Any:
        routing, norm = Routing(experts, shares), Rms(w["gain"], 1e-6) if normed else None
        inner = g.expert_glu(x, w["gate"], w["up"], routing, "silu", norm=norm)
        y = g.expert_sum(inner, w["down"], routing, add=add if added else None)
        return y if added else g.add(y, add)

    return compute


def _products(can: Capabilities, name: str, config: ExpertConfig, fmt: Format, more: bool) -> Iterator[Trial]:
    """Plain products; with a norm prologue and a residual."""
    tuning = default_tuning(can).only_experts(config)
    for what, compute in {"": _compute(), ", normed and added": _compute(normed=True, added=True)}.items():
        if more or not what:
            yield Trial(
                "experts",
                f"{fmt.name}{what}",
                name,
                tuning,
                compute,
                _inputs(),
                _experts(fmt, fmt),
                config.tolerance.result,
            )


def _ways(
    can: Capabilities, name: str, kernel: ExpertKernel, config: ExpertConfig, formats: list[Format]
) -> Iterator[Trial]:
    """Gate and up in different formats; rows that are not multiples of four; products that rank experts themselves."""
    tuning = default_tuning(can).only_experts(config)
    q8, q4 = BY_NAME["Q8_0"], BY_NAME["Q4_K"]
    yield Trial(
        "experts", "gate and up apart", name, tuning, _compute(), _inputs(), _experts(q8, q4), config.tolerance.result
    )
    if F32 in formats:
        # Rows of gate and up have 90 columns; those of down have as many as gate has rows.
        weights = _experts(F32, F32, 90) | {"down": Stored.random(F32, 5, 130, 90, seed=2)}
        weights |= {one: Stored.random(F32, 5, 90, 90, seed=i) for i, one in enumerate(("gate", "up"))}
        yield Trial("experts", "rows of 90", name, tuning, _compute(), _inputs(90), weights, config.tolerance.result)
    by_subgroups = next((one for _, one in gemm_trials(can).values() if one.takes(UNIT_OF_ALL)), None)
    if by_subgroups and (config.fragment or config.kernel == "moe/expert_gemv_int"):
        weights = _experts(q4, q4) | {"down": Stored.random(q4, 5, 256, 256), "m": Stored.random(q8, 70, 256)}
        inputs = {one: array for one, array in _inputs().items() if one != "add"}
        yield Trial(
            "experts", "normed next", name, tuning.only(by_subgroups), _normed_next, inputs, weights,
            10 * max(config.tolerance.result, by_subgroups.tolerance.result),
        )  # fmt: skip
    for what, compute in (
        ("biases, scales and clamps", _biased),
        ("limits of gate and up", partial(_biased, then=Situ(1.0, 2.0))),
        ("halves, scaled", _scaled),
        ("without a gate", _ungated),
    ):
        yield Trial("experts", what, name, tuning, compute, _inputs(), _experts(q4, q4), config.tolerance.result)
    by_products = config.tb == 1 and kernel.fuses_norm and config.subgroup_width > 1
    if by_products or (config.tb > 1 and F32 in formats and can.subgroup_size):
        ranked = f"ranked by {'products' if by_products else 'what sorts'}"
        for what in ("softmax", "late softmax", "sigmoid, biased", "sigmoid, answers scaled", "root of softplus"):
            yield Trial(
                "experts", f"{ranked}: {what}", name, tuning.changed(fuses_routing=True), _ranked(what),
                {"x": normal(3, 256)}, _experts(q4, q4), config.tolerance.result,
            )  # fmt: skip


def _biased(g: Any, w: Any, x: Array, experts: Array, shares: Array, add: Array, then: Glu = CLAMPS) -> Any:
    routing, biases = Routing(experts, shares), (w["gate_bias"], w["up_bias"])
    how: dict[str, Any] = {"bias": biases, "scales": (w["scales"], w["bias"])}
    inner = g.expert_glu(x, w["gate"], w["up"], routing, then, **how)
    return g.expert_sum(inner, w["down"], routing, add=add, bias=w["down_bias"])


def _normed_next(g: Any, w: Any, x: Array, experts: Array, shares: Array) -> Any:
    routing = Routing(experts, shares)
    inner = g.expert_glu(x, w["gate"], w["up"], routing, "silu")
    y = g.expert_sum(inner, w["down"], routing, add=x)
    return g.linear(y, w["m"], norm=Rms(w["gain"], 1e-6))


def _scaled(g: Any, w: Any, x: Array, experts: Array, shares: Array, add: Array) -> Any:
    routing = Routing(experts, shares)
    inner = g.expert_glu(x, w["both"], None, routing, "silu", scaled=True)
    return g.expert_sum(inner, w["down"], routing, add=add, weighted=False)


def _ungated(g: Any, w: Any, x: Array, experts: Array, shares: Array, add: Array) -> Any:
    routing = Routing(experts, shares)
    inner = g.expert_linear(x, w["up"], routing, then="relu2", bias=w["up_bias"])
    gate = g.linear(x, w["one"], then="sigmoid")  # the gate of a shared expert
    return g.expert_sum(inner, w["down"], routing, add=g.scale_rows(add, gate, add=add))


def _ranked(what: str) -> Any:
    def compute(g: Any, w: Any, x: Array) -> Any:
        routing = g.route(x, w["router"], replace(_gatings(w)[what], used=2))
        return g.expert_sum(g.expert_glu(x, w["gate"], w["up"], routing, "silu"), w["down"], routing)

    return compute
