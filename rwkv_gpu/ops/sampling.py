"""Sampling as an op: the sampling parameters of a row of logits, and their definition in numpy.

In this order: biases, penalties, mask, top-k, top-p, min-p, temperature, the draw.
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

from .draw import exponentials
from .sampler_state import RING, HostSamplerState
from .truncation import min_p, top_k, top_p

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

FROM_SLOT = 1 << 31  # an id with this bit means the last token sampled in the slot of that number
NO_TOKEN = 0xFFFFFFFF
ALL = 0xFFFFFFFF  # top_k without a limit

# The parameters of one row, in the layout of `shaders/sampling/draw.wgsl`.
_FIELDS = [
    ("slot", "<u4"),
    ("flags", "<u4"),  # values of `Flag`
    ("seed_low", "<u4"),
    ("seed_high", "<u4"),
    ("number", "<u4"),  # number of earlier draws of the sequence
    ("tokens", "<u4"),  # number of its tokens so far
    ("inverse_temperature", "<f4"),  # 1 / temperature
    ("top_k", "<u4"),  # ALL keeps all
    ("top_p", "<f4"),
    ("min_p", "<f4"),  # logarithm of min-p; -inf is written as -3.4e38
    ("repetition", "<f4"),
    ("presence", "<f4"),
    ("frequency", "<f4"),
    ("log2_decay", "<f4"),  # of the penalties
    ("window", "<u4"),  # tokens that penalties count, at most RING; 0: all
    ("free", "<u4"),
]
DRAW = np.dtype(_FIELDS)
DRAW_WORDS = len(_FIELDS)
WORD_OF = {name: number for number, (name, _) in enumerate(_FIELDS)}


def draw_words(rows: npt.NDArray[Any]) -> Words:
    """Rows of DRAW as words, [R, 16], which numpy copies faster than records."""
    return np.ascontiguousarray(rows).view(np.uint32).reshape(-1, DRAW_WORDS)


class Flag(IntFlag):
    """Sampling options of a row."""

    SKIP = 1  # samples no token: the host uses the logits
    GREEDY = 2  # the most likely token
    PENALISED = 4
    MASKED = 8
    CUT = 16  # top-k, top-p or min-p
    BIASED = 32


class Reason(IntEnum):
    """Why a row has no token."""

    NONE = 0
    BAD_NUMBERS = 1  # the logits contain NaN or +inf
    NOTHING_LEFT = 2  # every token is impossible, or masked
    SKIPPED = 3


@dataclass
class Drawing:
    """The inputs of a step's sampling, in numpy."""

    sampler_state: HostSamplerState
    draws: npt.NDArray[Any]  # DRAW [R]
    masks: Words | None = None  # [R, ceil(V / 32)]: bit i of word w is token 32 w + i, set where it is allowed


def sample(logits: Floats, drawing: Drawing) -> Words:
    """Samples each row and updates the sampler state: token, bits of its log probability, reason, 0. [R, 4]"""
    chosen = np.zeros((len(logits), 4), np.uint32)
    for row, (x, draw) in enumerate(zip(logits, drawing.draws[: len(logits)], strict=True)):
        mask = None if drawing.masks is None else drawing.masks[row]
        token, reason = _choose(x, draw, drawing.sampler_state, mask)
        chosen[row] = NO_TOKEN if token is None else token, 0, reason, 0
        if token is not None:
            most = x.max()
            chosen[row, 1] = np.float32(x[token] - most - np.log(np.exp(x - most).sum())).view(np.uint32)
        if reason != Reason.SKIPPED:
            drawing.sampler_state.sampled[draw["slot"]] = token or 0
        if token is not None and draw["flags"] & Flag.PENALISED:
            _accept(drawing.sampler_state, draw, token)
    return chosen


def _choose(
    logits: Floats, draw: Any, sampler_state: HostSamplerState, mask: Words | None
) -> tuple[int | None, Reason]:
    if draw["flags"] & Flag.SKIP:
        return None, Reason.SKIPPED
    if np.isnan(logits).any() or np.isposinf(logits).any():
        return None, Reason.BAD_NUMBERS
    x = logits.astype(np.float32)
    if draw["flags"] & Flag.BIASED:
        tokens, biases = sampler_state.biases[draw["slot"]]
        x[tokens] += biases
    if draw["flags"] & Flag.PENALISED:
        _penalise(x, draw, sampler_state.counts[draw["slot"]])
    if mask is not None and draw["flags"] & Flag.MASKED:
        x[~allowed(mask, len(x))] = -np.inf
    if x.max() == -np.inf:
        return None, Reason.NOTHING_LEFT
    if draw["flags"] & Flag.GREEDY:
        return int(x.argmax()), Reason.NONE
    kept = top_k(x, min(int(draw["top_k"]), len(x)))
    kept = kept[top_p(x[kept], float(draw["top_p"]))]
    kept = kept[min_p(x[kept], float(np.exp(draw["min_p"])))]
    seed = int(draw["seed_low"]) | int(draw["seed_high"]) << 32
    key = (x[kept] - x.max()) * draw["inverse_temperature"] - np.log(exponentials(seed, int(draw["number"]), kept))
    return int(kept[key.argmax()]), Reason.NONE


def allowed(mask: Words, vocabulary: int) -> npt.NDArray[np.bool_]:
    """A mask's bits. [V]"""
    return np.unpackbits(mask.astype("<u4").view(np.uint8), count=vocabulary, bitorder="little").astype(bool)


def _penalise(x: Floats, draw: Any, counts: Words) -> None:
    """Penalties: x = x / repetition where x > 0, else x · repetition;  x = x - presence - count · frequency"""
    seen = np.flatnonzero(counts[:, 1])
    age = draw["tokens"] - counts[seen, 1]
    count = counts[seen, 0].view(np.float32) * np.exp2(draw["log2_decay"] * age.astype(np.float32))
    y = np.where(x[seen] > 0, x[seen] / draw["repetition"], x[seen] * draw["repetition"])
    x[seen] = y - draw["presence"] - count * draw["frequency"]


def _accept(sampler_state: HostSamplerState, draw: Any, token: int) -> None:
    """Counts one more token, and uncounts the token that leaves the window."""
    counts, ring = sampler_state.counts[draw["slot"]], sampler_state.rings[draw["slot"]]
    number, at, window = counts[:, 0].view(np.float32), int(draw["tokens"]), int(draw["window"])
    if window and at >= window:
        leaves = ring[(at - window) % RING]
        number[leaves] -= 1
        if number[leaves] <= 0:
            counts[leaves] = 0
    ring[at % RING] = token
    age = np.float32(at + 1 - int(counts[token, 1]))
    number[token] = number[token] * np.exp2(draw["log2_decay"] * age) + 1
    counts[token, 1] = at + 1
