"""Penalties for repeating earlier tokens: token counts, and the token history for DRY."""

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from .sampling_params import SamplingParams

Floats = npt.NDArray[np.float32]  # [V]

LONGEST = 512  # a longer repetition counts as this long
RESCALE = 1e100


class TokenCounts:
    """How often each token occurred, in the last n tokens or with a decay factor per token."""

    def __init__(self, last_n: int, decay: float) -> None:
        self._window: deque[int] | None = deque() if last_n >= 0 and decay == 1 else None
        self._last_n = last_n
        self._decay = decay
        self._scale = 1.0  # counts are stored multiplied by this, so that decay is a single multiplication
        self._place: dict[int, int] = {}
        self._ids = np.zeros(16, np.int64)
        self._counts = np.zeros(16, np.float64)

    def add(self, token: int) -> None:
        """Counts a token."""
        if self._decay == 0:
            self._counts[:] = 0
        elif self._decay < 1:
            self._scale /= self._decay
            if self._scale > RESCALE:
                self._counts /= self._scale
                self._scale = 1.0
        place = self._find(token)
        self._counts[place] += self._scale
        if self._window is not None:
            self._window.append(token)
            if len(self._window) > self._last_n:
                self._counts[self._place[self._window.popleft()]] -= 1

    def _find(self, token: int) -> int:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        return place

    def seen(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The tokens that occurred, each once, and their counts above 0."""
        size = len(self._place)
        ids, counts = self._ids[:size], self._counts[:size] / self._scale
        said = np.ones(size, bool) if self._window is None else counts > 0
        return ids[said], counts[said]


def penalise(logits: Floats, counts: TokenCounts, params: SamplingParams) -> None:
    """Applies the penalties to the logits of earlier tokens, in place.

    x = x / repetition where x > 0, else x · repetition;  x = x - presence - count · frequency
    """
    ids, count = counts.seen()
    x = logits[ids].astype(np.float64)
    x = np.where(x > 0, x / params.repetition_penalty, x * params.repetition_penalty)
    logits[ids] = x - params.presence_penalty - count * params.frequency_penalty


class TokenHistory:
    """Every token so far, in one growing array."""

    def __init__(self) -> None:
        self._ids = np.zeros(256, np.int64)
        self._size = 0

    def add(self, token: int) -> None:
        """Appends a token."""
        if self._size == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
        self._ids[self._size] = token
        self._size += 1

    def last(self, n: int) -> npt.NDArray[np.int64]:
        """The last n tokens, or all if n is -1."""
        return self._ids[max(0, self._size - n) if n >= 0 else 0 : self._size]


def repetitions(ids: npt.NDArray[np.int64], shortest: int, breakers: npt.NDArray[np.int64]) -> dict[int, int]:
    """Returns the tokens that would continue a repetition, and how many tokens they would have repeated by then.

    A repetition is an earlier run that equals the end of `ids` and contains no breaker; a breaker is never its next
    token. The longest one counts, up to LONGEST.
    """
    broken = np.flatnonzero(np.isin(ids, breakers))
    limit = min(LONGEST, len(ids) - 1 - (int(broken[-1]) if len(broken) else -1))
    ends = np.arange(len(ids) - 1)  # ends of earlier runs
    lengths: dict[int, int] = {}
    for length in range(1, limit + 1):
        ends = ends[ends >= length - 1]
        ends = ends[ids[ends - (length - 1)] == ids[-length]]
        if len(ends) == 0:
            break
        if length >= shortest:
            lengths.update(dict.fromkeys(ids[ends + 1].tolist(), length))
    for breaker in breakers.tolist():
        lengths.pop(breaker, None)
    return lengths


def break_repetitions(logits: Floats, history: TokenHistory, params: SamplingParams) -> None:
    """Applies DRY in place.

    x = x - multiplier · base^(n - allowed_length) for tokens that continue a repetition of n tokens.
    """
    ids = history.last(params.dry_last_n)
    breakers = np.array(sorted(params.dry_breakers), np.int64)
    # Larger exponents would overflow
    most = math.log(1e30) / math.log(params.dry_base) if params.dry_base > 1 else math.inf
    for token, length in repetitions(ids, params.dry_allowed_length, breakers).items():
        logits[token] -= params.dry_multiplier * params.dry_base ** min(length - params.dry_allowed_length, most)
