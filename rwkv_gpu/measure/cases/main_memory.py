"""Trials of weights in main memory: copied before use, and experts through a cache."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...gpu.device import Capabilities
from ...kernels.defaults import default_tuning
from ...kernels.kernel import CLOSE
from ...ops.streaming import DIRECT_ROWS
from ...ops.vocabulary import Routing
from ..trials import Array, Stored, Trial
from .common import BY_NAME, normal

EXPERTS, SLOTS = 8, 6
# Formats of gate, up and down. Those with codebooks keep their tables behind the weights of all experts.
CACHED = {"some chosen twice": ("Q4_K", "Q4_K", "Q6_K"), "codebooks": ("IQ3_S", "IQ2_XXS", "IQ1_M")}


def cases(can: Capabilities) -> Iterator[Trial]:
    """Steps of many rows, for which weights are copied, and of few rows, some of which choose the same experts."""
    tuning = default_tuning(replace(can, fragment=0))  # off: matrix units would round more than these trials allow
    matrix = {"blk.0.matrix.weight": Stored.random(BY_NAME["Q4_K"], 96, 256)}
    for rows in (1, 2 * DIRECT_ROWS):
        yield Trial(
            "copy_weights", f"{rows} rows", "", tuning, lambda g, w, x: g.linear(x, w["blk.0.matrix.weight"]),
            {"x": normal(rows, 256)}, matrix, CLOSE.result, main_memory=True,
        )  # fmt: skip
    inputs = {
        "x": normal(3, 256), "experts": np.array([[7, 2], [2, 5], [0, 7]], np.uint32),
        "shares": np.random.default_rng(0).random((3, 2), np.float32),
    }  # fmt: skip
    for name, formats in CACHED.items():
        experts = {
            _name(matrix): Stored.random(BY_NAME[fmt], EXPERTS, rows, 256, seed=i)
            for i, (matrix, fmt, rows) in enumerate(zip(("gate", "up", "down"), formats, (256, 256, 128), strict=True))
        }
        yield Trial(
            "fetch_experts", name, "", tuning, _mixture, inputs, experts, 10 * CLOSE.result,
            main_memory=True, slots=SLOTS,
        )  # fmt: skip


def _name(matrix: str) -> str:
    return f"blk.0.ffn_{matrix}_exps.weight"


def _mixture(g: Any, w: Any, x: Array, experts: Array, shares: Array) -> Any:
    routing = Routing(experts, shares)
    inner = g.expert_glu(x, w[_name("gate")], w[_name("up")], routing, "silu")
    return g.expert_sum(inner, w[_name("down")], routing)
