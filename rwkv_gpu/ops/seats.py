"""What sampling keeps of each sequence from step to step: its last token, and what the penalties look back on.

A seat is that of one sequence. Its ring holds the last tokens for penalties with a window; its counts say of every
token how often it was said and when last. `GpuSeats` and `HostSeats` hold the same words.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OutOfMemory
from ..gpu.device import Buffer, Device
from ..gpu.plan import Slice

RING = 1024  # tokens that a window can look back on
NEVER = np.float32(-1e30)  # log2 of a decay of 0: what is an age old is gone

Words = npt.NDArray[np.uint32]


def fading(decay: float) -> np.float32:
    """log2(decay)"""
    return np.float32(math.log2(decay)) if decay > 0 else NEVER


def count(ids: Sequence[int] | npt.NDArray[Any], vocabulary: int, window: int, decay: float) -> Words:
    """How often each token was said, and when that was counted, from 1; 0 and 0 of those never said.

    In the last `window` tokens, or in all where it is 0; or fading by `decay` with every token. [V, 2]
    """
    said = np.asarray(ids, np.int64)
    if window:
        said = said[-window:]
    weights = decay ** np.arange(len(said) - 1, -1, -1, dtype=np.float64)
    counts = np.zeros((vocabulary, 2), np.uint32)
    counts[:, 0] = np.bincount(said, weights, vocabulary).astype(np.float32).view(np.uint32)
    counts[said, 1] = len(ids)
    return counts


def ring(ids: Sequence[int] | npt.NDArray[Any]) -> Words:
    """The last tokens, each at its place modulo RING. [RING]"""
    said = np.asarray(ids, np.int64)
    places = np.arange(max(0, len(said) - RING), len(said))
    words = np.zeros(RING, np.uint32)
    words[places % RING] = said[places]
    return words


class HostSeats:
    """The seats of all sequences in numpy."""

    def __init__(self, seats: int, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.said = np.zeros(seats, np.uint32)
        self.rings = np.zeros((seats, RING), np.uint32)
        self.counts = np.zeros((seats, vocabulary, 2), np.uint32)

    def remember(self, seat: int, ids: Sequence[int], window: int, decay: float) -> None:
        """A sequence that starts with these tokens, for penalties that look back on `window` or fade by `decay`."""
        self.rings[seat] = ring(ids)
        self.counts[seat] = count(ids, self.vocabulary, window, decay)

    def put(self, seat: int, token: int) -> None:
        """What the seat said last, chosen elsewhere."""
        self.said[seat] = token


class GpuSeats:
    """The seats of all sequences on a device: uint32 `said` [S + S · RING] and `counts` [S, V, 2]."""

    def __init__(
        self, device: Device, seats: int, vocabulary: int, make: Callable[[int, str], Buffer] | None = None
    ) -> None:
        make = make or device.buffer
        limit = min(device.capabilities.max_binding, device.capabilities.max_buffer)
        if 8 * seats * vocabulary > limit:
            raise OutOfMemory(
                f"counting {vocabulary:,} tokens of {seats} sequences takes {8 * seats * vocabulary:,} bytes, but this "
                f"device binds {limit:,} at most; load for fewer sequences"
            )
        self._device = device
        self.seats = seats
        self.vocabulary = vocabulary
        self._said = make(4 * seats * (1 + RING), "sampling")
        self._counts = make(8 * seats * vocabulary, "sampling")

    @staticmethod
    def nbytes(seats: int, vocabulary: int) -> int:
        """The memory that so many seats take."""
        return 4 * seats * (1 + RING) + 8 * seats * vocabulary

    @property
    def said(self) -> Slice:
        """What each seat said last, and then their rings."""
        return Slice(self._said, 0, self._said.nbytes)

    @property
    def counts(self) -> Slice:
        """How often each token was said, and when last."""
        return Slice(self._counts, 0, self._counts.nbytes)

    def remember(self, seat: int, ids: Sequence[int], window: int, decay: float) -> None:
        """A sequence that starts with these tokens, for penalties that look back on `window` or fade by `decay`."""
        words = count(ids, self.vocabulary, window, decay)
        self._device.write(self._said, ring(ids), 4 * (self.seats + seat * RING))
        self._device.write(self._counts, words, seat * words.nbytes)

    def put(self, seat: int, token: int) -> None:
        """What the seat said last, chosen elsewhere."""
        self._device.write(self._said, np.array([token], np.uint32), 4 * seat)
