"""Numbers and formats used by all trials."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from ...gguf.formats import FORMATS
from ...gpu.device import Capabilities
from ...kernels.parts import SUMS_ROUNDED
from ...kernels.registry import gemm_trials
from ...ops.batch import Batch
from ..trials import Array, Stored, Trial

BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
F32 = BY_NAME["F32"]
SOME = ("F16", "Q4_K", "Q6_K")  # floats, and formats with scales per 32 and per 16 values
RAGGED = ((3, 0, 33), (0, 5, 1), (1, 9, 17), (2, 1, 2))  # slot, start, tokens


def normal(*shape: int, seed: int = 0) -> Array:
    """Normally distributed numbers, deterministic."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def read_as_integers(trial: Trial, width: int, can: Capabilities) -> Iterator[Trial]:
    """The trial, followed by a product that reads its result as integers, so that quantisation may be fused."""
    config = next((config for _, config in gemm_trials(can).values() if config.reads_quantised), None)
    if config is not None:
        yield replace(
            trial, what=f"{trial.what}, quantised", tuning=trial.tuning.only(config).changed(quantising_width=0),
            compute=lambda g, w, /, **x: g.linear(trial.compute(g, w, **x), w["m"]),
            weights={**trial.weights, "m": Stored.random(BY_NAME["Q8_0"], 70, width)},
            allowed=10 * config.tolerance.result,
        )  # fmt: skip


def read_on_units(trial: Trial, width: int, can: Capabilities) -> Iterator[Trial]:
    """The trial, followed by a product on matrix units that reads its result as float16; rounding may be fused."""
    trials = gemm_trials(can).values()
    config = next((config for kernel, config in trials if kernel.takes(SUMS_ROUNDED)), None)
    if config is not None:
        yield replace(
            trial, what=f"{trial.what}, rounded", tuning=trial.tuning.only(config),
            compute=lambda g, w, /, **x: g.linear(trial.compute(g, w, **x), w["m"]),
            weights={**trial.weights, "m": Stored.random(BY_NAME["Q8_0"], 70, width)},
            allowed=10 * config.tolerance.result,
        )  # fmt: skip


def with_half_states(trial: Trial) -> Trial:
    """The trial with matrices of states in float16."""
    assert trial.past is not None
    states = {n: array.astype(np.float16) if array.ndim == 4 else array for n, array in trial.past.states.items()}
    return replace(trial, what=f"{trial.what}, states in float16", past=replace(trial.past, states=states))


def decode_batch(sequences: int) -> Batch:
    """One token of each sequence, some way into it."""
    return Batch.of([(slot, 7, [0]) for slot in range(sequences)])


def ragged(segments: Iterable[tuple[int, int, int]] = RAGGED) -> Batch:
    """Prompts of different lengths, some of which continue earlier tokens."""
    return Batch.of([(slot, start, [0] * count) for slot, start, count in segments])


def batches() -> dict[str, Batch]:
    """Prompts of different lengths, and a token for each of four sequences."""
    return {"prefill": ragged(), "decode": decode_batch(4)}
