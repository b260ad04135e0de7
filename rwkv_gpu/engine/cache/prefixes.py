"""Prefix cache: stores pages, states or both of earlier sequences, so that later ones with the same prefix reuse them.

Each entry is a whole prefix. Entries with a common beginning share pages, which are counted once. If a model has pages
only, a new sequence may branch off after any token of an entry; if it has a state, only at the end. A sorted index
finds entries and a heap chooses which to evict, so thousands of entries cost a request microseconds.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from .prefix_index import TOKEN, Key, PrefixIndex, as_key
from .store import PrefixHandle, SequenceStore

Rank = tuple[bool, float, int]
STALE = 4  # heap items per entry before stale ones are removed


@dataclass(eq=False, slots=True)
class Entry:
    """A stored prefix with the cost of its eviction."""

    key: Key  # key made of its token ids
    handle: PrefixHandle
    wanted: bool  # a request asked to keep it
    shorter: "Entry | None" = None  # the longest other entry that is a prefix of this one
    used: float = 0.0  # eviction clock when it was last stored or found
    turn: int = 0  # serial number of its last use

    @property
    def cost(self) -> int:
        """Tokens to recompute if this entry is evicted."""
        return self.handle.length - (self.shorter.handle.length if self.shorter is not None else 0)


MAX_KEY_BYTES = 64 << 20  # limit for the token ids that states are found by: 1,000,000 tokens take 8 MB per state


class PrefixCache:
    """A cache of prefixes, limited in bytes and in states.

    Entries that no request asked for are evicted first, so one long prompt does not evict every chat. The other entries
    with pages only are evicted by least recent use. States are evicted by use and cost (GreedyDual): an entry starts at
    the clock plus the tokens that its loss would cost. The lowest is evicted, and the clock is set to its value. So the
    states along a long chat thin out evenly, and old chats give way to new ones.
    """

    def __init__(
        self, store: SequenceStore, max_bytes: int, page_bytes: int, state_bytes: int, max_states: int
    ) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._page_bytes = page_bytes
        self._state_bytes = state_bytes
        self._max_states = max_states
        self._found: dict[Key, Entry] = {}
        self._index = PrefixIndex()
        # Eviction order. Items are lazy: an entry whose rank has risen since is pushed again when it comes up.
        self._ranks: list[tuple[Rank, int, Entry]] = []
        self._turns = itertools.count()
        self._clock = 0.0
        self._pages: Counter[tuple[int, int]] = Counter()  # number of entries that hold each page, by window
        self._held_bytes = 0  # total size of these pages
        self._states = 0  # number of entries with a state
        self._key_bytes = 0  # total size of their token ids
        self._max_key_bytes = MAX_KEY_BYTES

    def __len__(self) -> int:
        return len(self._found)

    @property
    def entries(self) -> list[Entry]:
        """All entries."""
        return [*self._found.values()]

    @property
    def nbytes(self) -> int:
        """Total size of all stored pages and states."""
        return self._held_bytes + self._states * self._state_bytes

    @property
    def stores(self) -> bool:
        """True if there is room for any entry."""
        return self._max_bytes > 0 and (self._max_states > 0 or not self._store.recurrent)

    def find(self, ids: Sequence[int] | Key) -> tuple[PrefixHandle, int] | None:
        """Finds the entry with the longest common prefix, and its length.

        The last token is never matched: it must be fed.
        """
        wanted = as_key(ids)
        nearest = self._index.nearest(wanted)
        best, most = (self._found[nearest[0]], min(nearest[1], len(wanted) // TOKEN - 1)) if nearest else (None, 0)
        if best is not None and most < best.handle.oldest:  # a state, or window pages, of a longer text
            longest = next(self._index.within(wanted[:-TOKEN]), None)
            best = None if longest is None else self._found[longest]
            most = 0 if best is None else best.handle.length
        if best is None or not most:
            return None
        self._use(best)
        return best.handle, most

    def branch(self, ids: Sequence[int] | Key) -> int:
        """Length of the longest common prefix with any entry, even if no state exists at that length."""
        nearest = self._index.nearest(as_key(ids))
        return 0 if nearest is None else nearest[1]

    def store(self, ids: Sequence[int] | Key, handle: PrefixHandle, *, wanted: bool = False) -> None:
        """Stores a prefix; takes over the caller's references."""
        mine = as_key(ids)
        assert handle.length == len(mine) // TOKEN
        longer = [self._found[key] for key in self._index.beginning_with(mine)]
        same = longer[:1] if self._store.rewinds or (longer and longer[0].key == mine) else []
        if same:
            self._store.release(handle)
            same[0].wanted |= wanted
            self._use(same[0])
            return
        within, shorter = self._index.within(mine), None
        if self._store.rewinds:
            for entry in [self._found[key] for key in within]:  # the new entry contains all of them
                self._forget(entry)
                wanted = wanted or entry.wanted
        else:  # only the longest: finding all prefixes of a long chat compares millions of ids with each
            shorter = next((self._found[key] for key in within), None)
        new = self._found[mine] = Entry(mine, handle, wanted, shorter)
        self._index.add(mine)
        for entry in longer:
            if entry.shorter is shorter:
                entry.shorter = new
                self._rank(entry)
        self._use(new)
        for page in handle.pages_by_window():
            self._pages[page] += 1
            if self._pages[page] == 1:
                self._held_bytes += self._bytes_of(page[0])
        if handle.state is not None:
            self._states += 1
            self._key_bytes += len(mine)
        # The end of a turn is cheap to recompute, but the next turn begins there, so kept entries outlive older ones.
        while wanted and len(self._found) > 1 and self._is_over:
            self.evict(but=new)
        while self._found and self._is_over:
            self.evict()

    @property
    def _is_over(self) -> bool:
        too_many = self._states > self._max_states or self._key_bytes > self._max_key_bytes
        return too_many or self.nbytes > self._max_bytes

    def evict(self, *, but: Entry | None = None) -> bool:
        """Evicts the entry with the lowest value, never `but`; False if there is none."""
        evicted = False
        spared: Entry | None = None
        while self._ranks and not evicted:
            rank, _, victim = heappop(self._ranks)
            if self._found.get(victim.key) is not victim:
                continue  # already removed
            if victim is but:
                spared = victim
            elif rank < self._rank_of(victim):
                self._rank(victim)
            else:
                self._clock = max(self._clock, self._value(victim))
                self._forget(victim)
                evicted = True
        if spared is not None:
            self._rank(spared)
        return evicted

    def forget(self, ids: Sequence[int] | Key) -> None:
        """Removes all prefixes of a sequence."""
        for key in [*self._index.within(as_key(ids))]:
            self._forget(self._found[key])

    def clear(self) -> None:
        """Removes all entries."""
        while self.evict():
            pass

    def _bytes_of(self, window: int) -> int:
        """Size of a page in the layers with this window."""
        return self._store.windows[window].page_bytes if window else self._page_bytes

    def _value(self, entry: Entry) -> float:
        return entry.used + (0 if self._store.rewinds else entry.cost)

    def _rank_of(self, entry: Entry) -> Rank:
        """Sort key for eviction: lowest first; among equals, least recently used first."""
        return entry.wanted, self._value(entry), entry.turn

    def _rank(self, entry: Entry) -> None:
        if len(self._ranks) > STALE * len(self._found) + 16:  # most items belong to entries used again since
            self._ranks = [(self._rank_of(one), next(self._turns), one) for one in self._found.values()]
            heapify(self._ranks)
        heappush(self._ranks, (self._rank_of(entry), next(self._turns), entry))

    def _use(self, entry: Entry) -> None:
        entry.used, entry.turn = self._clock, next(self._turns)
        self._rank(entry)

    def _forget(self, entry: Entry) -> None:
        del self._found[entry.key]
        self._index.remove(entry.key)
        for key in self._index.beginning_with(entry.key):
            if self._found[key].shorter is entry:
                self._found[key].shorter = entry.shorter
        if entry.handle.state is not None:
            self._states -= 1
            self._key_bytes -= len(entry.key)
        for page in entry.handle.pages_by_window():
            self._pages[page] -= 1
            if not self._pages[page]:
                del self._pages[page]
                self._held_bytes -= self._bytes_of(page[0])
        self._store.release(entry.handle)
