"""A sorted list of token sequences. Finds the one with the longest common prefix among thousands in a few comparisons.

Sequences are big-endian byte strings, so bytes sort as tokens do. The sequence that shares most with a key is adjacent
to the key's insertion point.
"""

import sys
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

TOKEN = 8  # bytes of an id, including its family bits
FIRST = 64 * TOKEN  # bytes compared first
Key = bytes


@dataclass(frozen=True)
class Salt:
    """Separates prefixes: the keys of two sequences with different salts differ from the first salted token on."""

    number: int = 0  # 64 bits that change each salted token; 0 changes none
    shared: int = 0  # number of first tokens without salt
    once: bool = False  # whether the prefix is used only once: it is neither stored nor looked up

    @classmethod
    def of(cls, text: str, shared: int = 0) -> "Salt":
        """The salt of a text; none for the empty one."""
        digest = sha256(text.encode("utf-8", "surrogatepass")).digest()
        return cls(int.from_bytes(digest[:8], "big"), shared) if text else PLAIN


PLAIN = Salt()


def key_of(ids: Sequence[int], salt: Salt = PLAIN, start: int = 0) -> Key:
    """Converts token ids to bytes; `start` is the place of the first one in its sequence."""
    tokens = array("Q", ids)
    if salt.number:
        np.frombuffer(tokens, np.uint64)[max(0, salt.shared - start) :] ^= np.uint64(salt.number)
    if sys.byteorder == "little":
        tokens.byteswap()
    return tokens.tobytes()


def as_key(ids: Sequence[int] | Key) -> Key:
    """Converts token ids to a key, unless they are one already."""
    return ids if isinstance(ids, bytes) else key_of(ids)


def shared(a: Key, b: Key) -> int:
    """Number of tokens in the common prefix of two sequences."""
    shorter, longer = (a, b) if len(a) < len(b) else (b, a)
    if longer.startswith(shorter):
        return len(shorter) // TOKEN
    # By bisection over bytes: numpy's argmax releases the GIL, and in a busy server the engine then waits for other
    # threads.

    at, size = 0, FIRST
    while a[at : at + size] == b[at : at + size]:
        at, size = at + size, 2 * size
    while size > TOKEN:
        size //= 2
        if a[at : at + size] == b[at : at + size]:
            at += size
    return at // TOKEN


class PrefixIndex:
    """A sorted list of sequences."""

    def __init__(self) -> None:
        self._keys: list[Key] = []

    def add(self, key: Key) -> None:
        """Adds a sequence that is not in the index."""
        insort(self._keys, key)

    def remove(self, key: Key) -> None:
        """Removes a sequence."""
        del self._keys[bisect_left(self._keys, key)]

    def nearest(self, key: Key) -> tuple[Key, int] | None:
        """Returns the sequence with the longest common prefix, and the number of shared tokens."""
        at = bisect_left(self._keys, key)
        adjacent = self._keys[max(0, at - 1) : at + 1]
        return max(((one, shared(one, key)) for one in adjacent), key=lambda found: found[1], default=None)

    def within(self, key: Key) -> Iterator[Key]:
        """Yields all sequences that are prefixes of this one, longest first, including itself."""
        end = len(key)
        while end > 0:
            at = bisect_left(self._keys, key[:end])
            if at < len(self._keys) and self._keys[at] == key[:end]:
                yield key[:end]
                end -= TOKEN
            elif at == 0:
                return
            else:  # the part shared with its neighbour is the longest other prefix
                end = min(end - TOKEN, TOKEN * shared(self._keys[at - 1], key[:end]))

    def beginning_with(self, key: Key) -> Iterator[Key]:
        """Yields all sequences that begin with this one, including itself."""
        at = bisect_left(self._keys, key)
        while at < len(self._keys) and self._keys[at].startswith(key):
            yield self._keys[at]
            at += 1
