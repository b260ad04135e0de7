"""Token ids in sorted order: which of thousands of sequences begin as another does, in a few comparisons.

Sequences are byte strings, big-endian, so that bytes sort as tokens do. Whatever shares most with a sequence stands
beside the place where that would be inserted.
"""

import sys
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

TOKEN = 8  # bytes: ids have families above them
FIRST = 64 * TOKEN  # bytes that are compared at first
Key = bytes


def key_of(ids: Sequence[int]) -> Key:
    """The bytes of token ids."""
    tokens = array("Q", ids)
    if sys.byteorder == "little":
        tokens.byteswap()
    return tokens.tobytes()


def shared(a: Key, b: Key) -> int:
    """How many tokens two sequences share at their beginning."""
    shorter, longer = (a, b) if len(a) < len(b) else (b, a)
    if longer.startswith(shorter):
        return len(shorter) // TOKEN
    # By halves, in bytes: numpy's argmax lets other threads run, and in a busy server the engine then waits for them.
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
        """Adds a sequence that is not there yet."""
        insort(self._keys, key)

    def remove(self, key: Key) -> None:
        """Removes a sequence."""
        del self._keys[bisect_left(self._keys, key)]

    def nearest(self, key: Key) -> tuple[Key, int] | None:
        """The sequence that shares most tokens with this one, and how many."""
        at = bisect_left(self._keys, key)
        beside = self._keys[max(0, at - 1) : at + 1]
        return max(((one, shared(one, key)) for one in beside), key=lambda found: found[1], default=None)

    def within(self, key: Key) -> Iterator[Key]:
        """The sequences that this one begins with, the longest first; itself, too."""
        end = len(key)
        while end > 0:
            at = bisect_left(self._keys, key[:end])
            if at < len(self._keys) and self._keys[at] == key[:end]:
                yield key[:end]
                end -= TOKEN
            elif at == 0:
                return
            else:  # whatever else it begins with is no longer than what it shares with the one before
                end = min(end - TOKEN, TOKEN * shared(self._keys[at - 1], key[:end]))

    def beginning_with(self, key: Key) -> Iterator[Key]:
        """The sequences that begin with this one; itself, too."""
        at = bisect_left(self._keys, key)
        while at < len(self._keys) and self._keys[at].startswith(key):
            yield self._keys[at]
            at += 1
