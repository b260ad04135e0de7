"""The prefix store: token ids of earlier sequences with their pages, their state or both, for others that begin alike.

Each entry is a whole prefix. Entries that begin alike share pages, which are counted once. If a model has pages only, a
new sequence may leave an entry after any of its tokens. If it has a state, only at the end of the entry. A request is
compared with all entries: there are few, and comparing two of 2,000 tokens takes microseconds.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .store import PrefixHandle, SequenceStore

Ids = npt.NDArray[Any]


@dataclass(eq=False, slots=True)
class Entry:
    """A stored prefix, and what its eviction would cost."""

    ids: Ids
    handle: PrefixHandle
    wanted: bool  # a request asked for it
    shorter: "Entry | None" = None  # the longest other entry that this one begins with
    used: float = 0.0  # the clock when it was stored or found last

    @property
    def cost(self) -> int:
        """Tokens that a request computes again if this entry is gone."""
        return len(self.ids) - (len(self.shorter.ids) if self.shorter is not None else 0)


class PrefixCache:
    """A store of prefixes, bounded in bytes and in states.

    Entries that no request asked for are evicted first: else one long prompt would drive out every chat. Among the
    others, those with pages only are evicted by least recent use. States are evicted by use and cost (GreedyDual):
    an entry starts with the clock plus the tokens that its loss would cost, the lowest is evicted, and the clock is set
    to its value. So the states along a long talk are thinned out evenly, and old talks give way to new ones.
    """

    def __init__(
        self, store: SequenceStore, most_bytes: int, page_bytes: int, state_bytes: int, most_states: int
    ) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._page_bytes = page_bytes
        self._state_bytes = state_bytes
        self._most_states = most_states
        self._entries: list[Entry] = []  # the one that was used last, last
        self._clock = 0.0
        self._pages: Counter[int] = Counter()  # entries that hold each

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages and states that are handle."""
        return len(self._pages) * self._page_bytes + self._states * self._state_bytes

    def find(self, ids: Sequence[int]) -> tuple[PrefixHandle, int] | None:
        """The entry that shares most with a sequence, and how much of it; the last token is always left to be fed."""
        wanted = np.array(ids, np.uint32)
        best, most = None, 0
        for entry in self._entries:
            length = min(common(entry.ids, wanted), len(wanted) - 1)
            if not self._store.rewinds and length < len(entry.ids):
                continue
            if length > most:
                best, most = entry, length
        if best is None:
            return None
        self._use(best)
        return best.handle, most

    def branch(self, ids: Sequence[int]) -> int:
        """How many tokens a sequence shares with the entry most like it, whether there is a state there or not."""
        wanted = np.array(ids, np.uint32)
        return max((common(entry.ids, wanted) for entry in self._entries), default=0)

    def store(self, ids: Sequence[int], handle: PrefixHandle, *, wanted: bool = False) -> None:
        """Takes over a hold on the beginning of a sequence."""
        assert handle.length == len(ids)
        mine = np.array(ids, np.uint32)
        shorter: Entry | None = None
        longer: list[Entry] = []
        for entry in list(self._entries):
            shared = common(entry.ids, mine)
            if shared == len(mine) and (self._store.rewinds or shared == len(entry.ids)):
                self._store.release(handle)
                entry.wanted |= wanted
                self._use(entry)
                return
            if shared == len(entry.ids) and self._store.rewinds:
                self._forget(entry)  # the new one has all of it
                wanted = wanted or entry.wanted
            elif shared == len(entry.ids) and (shorter is None or shared > len(shorter.ids)):
                shorter = entry
            elif shared == len(mine):
                longer.append(entry)
        new = Entry(mine, handle, wanted, shorter, self._clock)
        for entry in longer:
            if entry.shorter is shorter:
                entry.shorter = new
        self._entries.append(new)
        self._pages.update(handle.pages)
        while self._entries and (self.nbytes > self._most_bytes or self._states > self._most_states):
            self.evict()

    def evict(self) -> bool:
        """Evicts the entry that is worth least; false where there is none."""
        if not self._entries:
            return False
        victim = min(self._entries, key=lambda entry: (entry.wanted, self._value(entry)))  # of equals the least used
        self._clock = max(self._clock, self._value(victim))
        self._forget(victim)
        return True

    def forget(self, ids: Sequence[int]) -> None:
        """Forgets all beginnings of a sequence that went wrong."""
        wanted = np.array(ids, np.uint32)
        for entry in list(self._entries):
            if common(entry.ids, wanted) == len(entry.ids):
                self._forget(entry)

    def clear(self) -> None:
        """Forgets all."""
        while self.evict():
            pass

    @property
    def _states(self) -> int:
        return sum(entry.handle.state is not None for entry in self._entries)

    def _value(self, entry: Entry) -> float:
        return entry.used + (0 if self._store.rewinds else entry.cost)

    def _use(self, entry: Entry) -> None:
        self._entries.remove(entry)
        self._entries.append(entry)
        entry.used = self._clock

    def _forget(self, entry: Entry) -> None:
        self._entries.remove(entry)
        for other in self._entries:
            if other.shorter is entry:
                other.shorter = entry.shorter
        self._pages.subtract(entry.handle.pages)
        self._pages = +self._pages
        self._store.release(entry.handle)


def common(a: Ids, b: Ids) -> int:
    """How many tokens two sequences share at their beginning."""
    least = min(len(a), len(b))
    apart = a[:least] != b[:least]
    return int(apart.argmax()) if apart.any() else least
