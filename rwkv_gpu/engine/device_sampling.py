"""Sampling of a request on the device: whether it is possible, and its row of `draws`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ops.draw import WORD, inverse_temperature
from ..ops.sampler_state import BIASES, RING, GpuSamplerState, HostSamplerState, log2_decay
from ..ops.sampling import ALL, DRAW, Flag
from .sampling_params import SamplingParams

IMPOSSIBLE = -3.4e38  # written instead of -inf


def samples_on_device(params: SamplingParams) -> bool:
    """True if the device can sample with these params; otherwise a `Sampler` must, from logits that are read back."""
    rare = (
        params.typical_p < 1
        or params.dry_multiplier > 0
        or params.xtc_probability > 0
        or params.mirostat_tau > 0
        or params.min_tokens > 0
        or (params.post_sampling_probs and params.logprobs > 0)
        or len(params.logit_bias) > BIASES
        or len(params.logits_processors) > 0
    )
    return not rare and (not penalises(params) or window(params) <= RING)


def penalises(params: SamplingParams) -> bool:
    """True if earlier tokens change a logit: the slot must then store them."""
    return params.penalises and (params.penalty_last_n != 0 or params.penalty_decay < 1)


def window(params: SamplingParams) -> int:
    """Tokens that the penalties consider; 0 is all."""
    return params.penalty_last_n if params.penalty_last_n > 0 and params.penalty_decay == 1 else 0


def draw_row(params: SamplingParams, seed: int, slot: int, *, masked: bool = False) -> npt.NDArray[Any]:
    """A request's row of draws, without `number` and `tokens`, which change every step."""
    row = np.zeros((), DRAW)
    flags = Flag.MASKED if masked else Flag(0)
    if params.temperature == 0:
        flags |= Flag.GREEDY
    elif params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
        flags |= Flag.CUT
    if penalises(params):
        flags |= Flag.PENALISED
    if params.logit_bias:
        flags |= Flag.BIASED
    row["slot"], row["flags"] = slot, flags
    row["seed_low"], row["seed_high"] = seed & WORD, seed >> 32
    row["inverse_temperature"] = inverse_temperature(params.temperature)
    row["top_k"] = params.top_k or ALL
    row["top_p"] = params.top_p
    row["min_p"] = math.log(params.min_p) if params.min_p > 0 else IMPOSSIBLE
    row["repetition"] = params.repetition_penalty
    row["presence"], row["frequency"] = params.presence_penalty, params.frequency_penalty
    row["log2_decay"], row["window"] = log2_decay(params.penalty_decay), window(params)
    return row


def remember(state: GpuSamplerState | HostSamplerState, slot: int, ids: Sequence[int], params: SamplingParams) -> None:
    """Prepares a slot for the first draw of a sequence with these tokens."""
    if penalises(params):
        state.remember(slot, ids, window(params), params.penalty_decay)
    if params.logit_bias:
        state.bias(slot, params.logit_bias)


def skipped_row() -> npt.NDArray[Any]:
    """The row of draws of logits that are not sampled."""
    row = np.zeros((), DRAW)
    row["flags"] = Flag.SKIP
    return row
