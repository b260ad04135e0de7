"""Trials of mixtures of experts: routing, and products with the chosen experts."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ...gguf.formats import Format
from ...gpu.device import Capabilities
from ...kernels.defaults import default_tuning, reductions
from ...kernels.expert_config import ExpertConfig, ExpertKernel
from ...kernels.gemm_config import MANY
from ...kernels.kernel import CLOSE
from ...kernels.parts import FORMAT
from ...kernels.registry import expert_trials
from ...ops.vocabulary import Rms, Routing
from ..trials import Array, Stored, Trial
from .common import BY_NAME, F32, SOME, normal


def cases(can: Capabilities) -> Iterator[Trial]:
    """All of them."""
    yield from _routes(can)
    known = set()
    for name, (kernel, config) in expert_trials(can).items():
        [hole] = [hole for hole in kernel.holes if hole.name == FORMAT.name]
        formats = [fmt for fmt in BY_NAME.values() if f"formats/{fmt.shader}" in hole.parts]
        every = kernel.name not in known
        known.add(kernel.name)
        for fmt in formats:
            if every or fmt.name in SOME:
                yield from _products(can, name, config, fmt, more=fmt.name == "Q4_K")
        yield from _ways(can, name, kernel, config, formats)


def _routes(can: Capabilities) -> Iterator[Trial]:
    """Few experts, and more than are ranked at once."""
    for (name, tuning), part, count in product(reductions(can).items(), ("experts", "shares"), (64, 1030)):
        yield Trial(
            "route", f"{part} of {count}", name, tuning,
            lambda g, w, x, part=part: getattr(g.route(x, w["router"], 4, normalise=True), part),
            {"x": normal(5, 48)}, {"router": Stored.of(normal(count, 48, seed=1))}, CLOSE.result,
        )  # fmt: skip


def _experts(gate: Format, up: Format, width: int = 256) -> dict[str, Stored]:
    shapes = {"gate": (gate, 5, 256, width), "up": (up, 5, 256, width), "down": (gate, 5, 130, 256)}
    weights = {name: Stored.random(fmt, *shape, seed=i) for i, (name, (fmt, *shape)) in enumerate(shapes.items())}
    return weights | {"gain": Stored.of(1 + normal(width) / 4), "router": Stored.of(normal(5, width, seed=7))}


def _inputs(width: int = 256, rows: int = 9) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    chosen = np.array([rng.permutation(5)[:2] for _ in range(rows)], np.uint32)
    return {
        "x": normal(rows, width), "experts": chosen, "shares": rng.random((rows, 2), np.float32),
        "add": normal(rows, 130, seed=2),
    }  # fmt: skip


def _says(normed: bool = False, added: bool = False) -> Any:
    def says(g: Any, w: Any, x: Array, experts: Array, shares: Array, add: Array) -> Any:
        routing, norm = Routing(experts, shares), Rms(w["gain"], 1e-6) if normed else None
        inner = g.expert_glu(x, w["gate"], w["up"], routing, "silu", norm=norm)
        y = g.expert_sum(inner, w["down"], routing, add=add if added else None)
        return y if added else g.add(y, add)

    return says


def _products(can: Capabilities, name: str, config: ExpertConfig, fmt: Format, more: bool) -> Iterator[Trial]:
    """As they are; normed on the way, and added to."""
    tuning = replace(default_tuning(can), experts=((MANY, config),), experts_short=())
    for what, says in {"": _says(), ", normed and added": _says(normed=True, added=True)}.items():
        if more or not what:
            yield Trial(
                "experts",
                f"{fmt.name}{what}",
                name,
                tuning,
                says,
                _inputs(),
                _experts(fmt, fmt),
                config.tolerance.result,
            )


def _ways(
    can: Capabilities, name: str, kernel: ExpertKernel, config: ExpertConfig, formats: list[Format]
) -> Iterator[Trial]:
    """Gate and up in formats of their own; rows that no vec4s fill; experts that products rank by themselves."""
    tuning = replace(default_tuning(can), experts=((MANY, config),), experts_short=())
    q8, q4 = BY_NAME["Q8_0"], BY_NAME["Q4_K"]
    yield Trial(
        "experts", "gate and up apart", name, tuning, _says(), _inputs(), _experts(q8, q4), config.tolerance.result
    )
    if F32 in formats:
        # Rows of gate and up have 90 columns, those of down as many rows as gate has.
        weights = _experts(F32, F32, 90) | {"down": Stored.random(F32, 5, 130, 90, seed=2)}
        weights |= {one: Stored.random(F32, 5, 90, 90, seed=i) for i, one in enumerate(("gate", "up"))}
        yield Trial("experts", "rows of 90", name, tuning, _says(), _inputs(90), weights, config.tolerance.result)
    if config.tb == 1 and kernel.fuses_norm and config.subgroup_width > 1:
        yield Trial(
            "experts", "ranked by products", name, replace(tuning, fuses_routing=True), _ranked,
            {"x": normal(3, 256)}, _experts(q4, q4), config.tolerance.result,
        )  # fmt: skip


def _ranked(g: Any, w: Any, x: Array) -> Any:
    routing = g.route(x, w["router"], 2, normalise=True)
    return g.expert_sum(g.expert_glu(x, w["gate"], w["up"], routing, "silu"), w["down"], routing)
