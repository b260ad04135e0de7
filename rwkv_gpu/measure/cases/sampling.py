"""Trials of each common sampler, and of ids sampled on the device."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from ...engine.device_sampling import draw_row
from ...engine.sampling_params import SamplingParams
from ...gpu.device import Capabilities
from ...kernels.defaults import reductions
from ...kernels.kernel import EXACT
from ...kernels.tuning import Tuning
from ...ops.sampling import FROM_SLOT
from ...ops.vocabulary import LayerNorm
from ..trials import Array, Draws, Stored, Trial
from .common import normal

VOCABULARY, ROWS = 5000, 8
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "top-k": {"top_k": 40},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.05},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "bias": {"logit_bias": dict.fromkeys(range(1, VOCABULARY, 701), 9.0) | {4999: float("-inf")}},
    "mask": {},
    "plain": {"temperature": 0.7},
}
HOW = {"mask": "masked", "plain": "plain"}


def cases(can: Capabilities) -> Iterator[Trial]:
    """Blocks reduced by a separate dispatch and, if supported, by the last workgroup to finish."""
    for (name, tuning), joins in product(reductions(can).items(), (False, True)):
        if can.coherent or not joins:
            way = f"{name}{', last workgroup joins' * joins}"
            for sampler, settings in SAMPLERS.items():
                yield _trial(way, tuning.changed(last_workgroup_reduces=joins), sampler, settings)
    for name, tuning in reductions(can).items():
        yield from _sampled_ids(name, tuning)


def _draws(sampler: str, settings: dict[str, Any], rows: int) -> Draws:
    masked = sampler == "mask"
    earlier = np.random.default_rng(3).integers(0, VOCABULARY, 40).tolist()
    params = SamplingParams(**settings)
    draws = np.stack([draw_row(params, 11 + row, row, masked=masked) for row in range(rows)])
    draws["tokens"] = len(earlier)
    words = np.random.default_rng(4).integers(0, 1 << 32, (rows, -(-VOCABULARY // 32)), np.uint32)
    return Draws(draws, earlier, VOCABULARY, words if masked else None, params.logit_bias)


def _trial(name: str, tuning: Tuning, sampler: str, settings: dict[str, Any]) -> Trial:
    how = HOW.get(sampler, "any")
    return Trial(
        "sample", sampler, name, tuning, lambda g, _, logits: g.sample(logits, how=how),
        {"logits": 3 * normal(ROWS, VOCABULARY)}, columns=(0, 2), draws=_draws(sampler, settings, ROWS),
    )  # fmt: skip


def _sampled_ids(name: str, tuning: Tuning) -> Iterator[Trial]:
    """Embedding rows for ids from the host, and for ids last sampled in slots, initially 0."""
    ids: Array = np.array([7, FROM_SLOT, 3, FROM_SLOT | 2], np.uint32)
    weights = {n: Stored.of(normal(*shape, seed=i)) for i, (n, shape) in enumerate(
        {"w": (11, 256), "gain": (256,), "shift": (256,)}.items()
    )}  # fmt: skip
    draws = _draws("greedy", SAMPLERS["greedy"], len(ids))
    yield Trial(
        "token_numbers", "sampled ids", name, tuning, lambda g, _, ids: g.token_numbers(ids), {"ids": ids}, draws=draws
    )
    for normed in (False, True):
        yield Trial(
            "embed", f"sampled ids{', normed' * normed}", name, tuning,
            lambda g, w, ids, normed=normed: g.embed(
                w["w"], ids, norm=LayerNorm(w["gain"], w["shift"], 1e-5) if normed else None
            ),
            {"ids": ids}, weights, EXACT.result, draws=draws,
        )  # fmt: skip
