"""The sampler state of each sequence between steps: its last token, token counts for penalties, and biases.

Each sequence has a slot. A ring holds its last tokens, for penalties with a window. Counts hold how often each token
occurred, and its last occurrence. `GpuSamplerState` and `HostSamplerState` have the same layout.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OutOfMemory
from ..gpu.device import Buffer, Device
from ..gpu.plan import Slice

RING = 1024  # maximum window of penalties, in tokens
BIASES = 4096  # maximum number of biased tokens of a sequence
LEAST = np.float32(-3.4e38)  # stands for a bias of -inf in kernels
NEVER = np.float32(-1e30)  # stands for log2 of a decay of 0: earlier tokens no longer count

Words = npt.NDArray[np.uint32]


def log2_decay(decay: float) -> np.float32:
    """log2(decay)"""
    return np.float32(math.log2(decay)) if decay > 0 else NEVER


def count(ids: Sequence[int] | npt.NDArray[Any], vocabulary: int, window: int, decay: float) -> Words:
    """How often each token occurred, and the number of its last occurrence, from 1; both 0 if it never occurred.

    Counts the last `window` tokens, or all if it is 0; or all tokens, faded by `decay` with every token. [V, 2]
    """
    tokens = np.asarray(ids, np.int64)
    if window:
        tokens = tokens[-window:]
    weights = decay ** np.arange(len(tokens) - 1, -1, -1, dtype=np.float64)
    counts = np.zeros((vocabulary, 2), np.uint32)
    counts[:, 0] = np.bincount(tokens, weights, vocabulary).astype(np.float32).view(np.uint32)
    counts[tokens, 1] = len(ids)
    return counts


def ring(ids: Sequence[int] | npt.NDArray[Any]) -> Words:
    """The last tokens, each at its index modulo RING. [RING]"""
    tokens = np.asarray(ids, np.int64)
    places = np.arange(max(0, len(tokens) - RING), len(tokens))
    words = np.zeros(RING, np.uint32)
    words[places % RING] = tokens[places]
    return words


def bias_table(biases: Mapping[int, float], vocabulary: int) -> Words:
    """For every 32 tokens, a bit mask of those with a bias, and the number of biases before them; then the biases.

    A token finds its bias by reading one entry of the table. [W + ceil(count / 2), 2], W = ceil(V / 32)
    """
    tokens = np.array(sorted(biases), np.int64)
    words = np.zeros((-(-vocabulary // 32), 2), np.uint32)
    np.bitwise_or.at(words[:, 0], tokens // 32, (1 << tokens % 32).astype(np.uint32))
    words[:, 1] = np.searchsorted(tokens, np.arange(len(words)) * 32)
    values = np.zeros(2 * -(-len(tokens) // 2), np.float32)
    values[: len(tokens)] = np.maximum([biases[token] for token in tokens.tolist()], LEAST)
    return np.concatenate([words, values.view(np.uint32).reshape(-1, 2)])


def pairs(vocabulary: int) -> int:
    """The number of pairs of words of a slot in `counts`."""
    return vocabulary + -(-vocabulary // 32) + BIASES // 2


class HostSamplerState:
    """The sampler state of all slots in numpy."""

    def __init__(self, slots: int, vocabulary: int, drafts: int = 0) -> None:
        self.vocabulary = vocabulary
        self.slots = slots
        self.sampled = np.zeros(slots * (1 + drafts), np.uint32)
        self.rings = np.zeros((slots, RING), np.uint32)
        self.counts = np.zeros((slots, vocabulary, 2), np.uint32)
        self.biases: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]] = {}  # tokens and their biases

    def remember(self, slot: int, ids: Sequence[int], window: int, decay: float) -> None:
        """Starts a sequence with these tokens, for penalties with a `window` or a `decay`."""
        self.rings[slot] = ring(ids)
        self.counts[slot] = count(ids, self.vocabulary, window, decay)

    def bias(self, slot: int, biases: Mapping[int, float]) -> None:
        """Sets the biases of a sequence's logits, by token."""
        self.biases[slot] = np.array([*biases], np.int64), np.array([*biases.values()], np.float32)

    def put(self, slot: int, token: int) -> None:
        """Sets the slot's last token, which was chosen elsewhere."""
        self.sampled[slot] = token

    def draft_place(self, slot: int, number: int) -> int:
        """The place in `sampled` of a drafted token of a slot."""
        return (1 + number) * self.slots + slot


class GpuSamplerState:
    """The sampler state of all slots on a device: uint32 `sampled` [S + S · RING] and `counts` [S, pairs(V), 2].

    Each slot's counts are followed by its table of biases: the smallest devices lack a binding for a separate table.
    Rings of further slots hold up to `drafts` drafted tokens of each slot. `lengths` is [S, 2].
    """

    def __init__(
        self,
        device: Device,
        slots: int,
        vocabulary: int,
        make: Callable[[int, str], Buffer] | None = None,
        drafts: int = 0,
    ) -> None:
        make = make or device.buffer
        limit = min(device.capabilities.max_binding, device.capabilities.max_buffer)
        nbytes = 8 * slots * pairs(vocabulary)
        if nbytes > limit:
            raise OutOfMemory(
                f"counting {vocabulary:,} tokens of {slots} sequences takes {nbytes:,} bytes, but this "
                f"device binds {limit:,} at most; load for fewer sequences"
            )
        self._device = device
        self._slots = slots
        self.slots = slots + -(-slots * drafts // RING)  # number of rows of `sampled`
        self.vocabulary = vocabulary
        self._sampled = make(4 * self.slots * (1 + RING), "sampling")
        self._counts = make(nbytes, "sampling")
        self._lengths = make(8 * slots, "sampling")

    @staticmethod
    def nbytes(slots: int, vocabulary: int) -> int:
        """Bytes of memory for a number of slots."""
        return 4 * slots * (1 + RING) + 8 * slots * (pairs(vocabulary) + 1)

    @property
    def sampled(self) -> Slice:
        """The last token of each slot, followed by the rings."""
        return Slice(self._sampled, 0, self._sampled.nbytes)

    @property
    def lengths(self) -> Slice:
        """For each slot, after a step whose right drafts are counted: the next position, and the state to continue."""
        return Slice(self._lengths, 0, self._lengths.nbytes)

    @property
    def counts(self) -> Slice:
        """For each slot, the count and last occurrence of each token, followed by its biases."""
        return Slice(self._counts, 0, self._counts.nbytes)

    def remember(self, slot: int, ids: Sequence[int], window: int, decay: float) -> None:
        """Starts a sequence with these tokens, for penalties with a `window` or a `decay`."""
        words = count(ids, self.vocabulary, window, decay)
        self._device.write(self._sampled, ring(ids), 4 * (self.slots + slot * RING))
        self._device.write(self._counts, words, 8 * slot * pairs(self.vocabulary))

    def bias(self, slot: int, biases: Mapping[int, float]) -> None:
        """Sets the biases of a sequence's logits, by token; at most BIASES."""
        table = bias_table(biases, self.vocabulary)
        self._device.write(self._counts, table, 8 * (slot * pairs(self.vocabulary) + self.vocabulary))

    def draft_place(self, slot: int, number: int) -> int:
        """The place in `sampled` of a drafted token of a slot."""
        return self.slots + self._slots * RING + number * self._slots + slot

    def put(self, slot: int, token: int) -> None:
        """Sets the slot's last token, which was chosen elsewhere."""
        self._device.write(self._sampled, np.array([token], np.uint32), 4 * slot)
