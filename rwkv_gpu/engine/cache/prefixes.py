"""What sequences have left behind: beginnings of token ids with their pages or state, for others that begin alike.

Each entry is a whole beginning. Entries that begin alike share pages, which are counted once; where a model attends, a
new sequence may leave an entry after any token of it, where it has a state, only at its end. All entries are compared
with the ids that are asked for: there are few, and to compare two of 2,000 tokens takes microseconds.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .store import PrefixHandle, SequenceStore

Ids = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Entry:
    """A beginning and what is handle of it."""

    ids: Ids
    handle: PrefixHandle
    wanted: bool  # somebody asked for it to be kept


class PrefixCache:
    """A store of beginnings, bounded in bytes and in states.

    What was not used for longest is forgotten first, and before all what nobody asked for: else one long prompt would
    drive out every chat.
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
        self._entries.remove(best)
        self._entries.append(best)
        return best.handle, most

    def store(self, ids: Sequence[int], handle: PrefixHandle, *, wanted: bool = False) -> None:
        """Takes over a hold on the beginning of a sequence."""
        assert handle.length == len(ids)
        mine = np.array(ids, np.uint32)
        for entry in list(self._entries):
            shared = common(entry.ids, mine)
            if shared == len(mine) and (self._store.rewinds or shared == len(entry.ids)):
                self._store.release(handle)
                self._entries.remove(entry)
                self._entries.append(replace(entry, wanted=wanted or entry.wanted))
                return
            if shared == len(entry.ids) and self._store.rewinds:
                self._forget(entry)  # the new one has all of it
                wanted = wanted or entry.wanted
        self._entries.append(Entry(mine, handle, wanted))
        self._pages.update(handle.pages)
        while self._entries and (self.nbytes > self._most_bytes or self._states > self._most_states):
            self.evict()

    def evict(self) -> bool:
        """Forgets what can best be done without; false where there is nothing left."""
        if not self._entries:
            return False
        self._forget(min(self._entries, key=lambda entry: entry.wanted))  # of equals the one not used for longest
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

    def _forget(self, entry: Entry) -> None:
        self._entries.remove(entry)
        self._pages.subtract(entry.handle.pages)
        self._pages = +self._pages
        self._store.release(entry.handle)


def common(a: Ids, b: Ids) -> int:
    """How many tokens two sequences share at their beginning."""
    least = min(len(a), len(b))
    apart = a[:least] != b[:least]
    return int(apart.argmax()) if apart.any() else least
