"""The pages of all sequences: who holds which, what is shared, what must be copied before it is written. Knows no GPU.

A page holds PAGE positions of one sequence, in every layer. Sequences with the same beginning share its pages; a shared
page is never written: whoever writes into it gets a copy first. Layers with a window have a pager of their own, which
gives back the pages that no further row sees.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...errors import CacheFull, ContextFull
from ...ops.vocabulary import PAGE
from .pool import PagePool


@dataclass(frozen=True)
class Copy:
    """A page that must be copied to another before a step."""

    source: int
    target: int


class Span(Protocol):
    """Positions that a step writes of the sequence in a slot."""

    @property
    def slot(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int:
        """The length of the sequence after the step."""

    @property
    def keeps(self) -> bool:
        """Whether a state is written after each of its rows."""


@dataclass(frozen=True)
class HeldPages:
    """Neighbouring pages of a sequence that somebody holds."""

    first: int  # the number of the first in the sequence
    pages: tuple[int, ...]


class Pager:
    """A pool of pages and a page table for each slot, with a count of the holders of each page.

    With a window, a sequence keeps what its next row sees, and `slack` positions before it, to which it may go back.
    """

    def __init__(self, pages: int, context: int, window: int = 0, slack: int = 0) -> None:
        self.context = context  # positions that a sequence may have
        self.window = window  # 0 keeps all
        self._slack = slack
        self.pool = PagePool(pages)
        self._tables: dict[int, list[int]] = {}  # of the pages that are kept
        self._firsts: dict[int, int] = {}  # pages before these that were given back
        self._lengths: dict[int, int] = {}

    def table(self, slot: int) -> Sequence[int]:
        """The pages of a sequence, in the order of its positions; the first that is kept stands for those before it."""
        table, first = self._tables.get(slot, []), self._firsts.get(slot, 0)
        return [*table[:1] * first, *table] if first else table

    def held(self, slot: int) -> HeldPages:
        """The pages that a sequence keeps."""
        return HeldPages(self._firsts.get(slot, 0), tuple(self._tables.get(slot, ())))

    def oldest(self, slot: int) -> int:
        """The least length, but 0, that a sequence can go back to: its next row sees nothing that was given back."""
        first = self._firsts.get(slot, 0)
        return first * PAGE + self.window - 1 if first else 0

    def length(self, slot: int) -> int:
        """Positions that a sequence has."""
        return self._lengths.get(slot, 0)

    def prepare(self, wanted: Sequence[Span]) -> list[Copy]:
        """Gives each sequence pages of its own for what a step writes; the copies must be made before it.

        What a sequence had from `start` on is forgotten. Raises before any page is taken where there are too few.
        """
        self.check(wanted)
        return self.take(wanted)

    def check(self, wanted: Sequence[Span]) -> None:
        """Forgets what a step writes anew and gives back what it does not see; raises where pages are too few."""
        for want in wanted:
            if want.end > self.context:
                raise ContextFull(
                    f"a sequence of {want.end:,} tokens does not fit the context of {self.context:,}; "
                    "shorten it, or load the model with a larger context"
                )
        for want in wanted:
            length = self._lengths.get(want.slot, 0)
            assert want.start <= length, f"slot {want.slot} has no position {want.start - 1}"
            if want.start < length:
                self.truncate(want.slot, want.start)
            if self.window:
                self._give_back(want.slot, self._first_seen(want.start))
        growing = [want for want in wanted if not self._has_room(want)]
        if growing and (needed := self._needed(growing)) > self.pool.free:
            raise CacheFull(
                f"the step needs {needed:,} pages of {PAGE} tokens, but only {self.pool.free:,} of "
                f"{self.pool.pages:,} are free; end a sequence, or load the model with room for more"
            )

    def take(self, wanted: Sequence[Span]) -> list[Copy]:
        """The pages of a step that was checked."""
        growing = [want for want in wanted if not self._has_room(want)]
        self._lengths.update([(want.slot, want.end) for want in wanted])
        return [copy for want in growing for copy in self._grow(want)]

    def begin(self, slot: int, length: int) -> None:
        """A sequence of that length whose bytes are yet to be written: pages for what its next row sees."""
        self.truncate(slot, 0)
        first = self._first_seen(length, slack=0) if self.window else 0
        if _pages(length) - first > self.pool.free:
            raise CacheFull(
                f"a sequence of {length:,} tokens needs more pages than the {self.pool.free:,} that are free"
            )
        self._tables[slot] = [self.pool.take() for _ in range(_pages(length) - first)]
        self._firsts[slot], self._lengths[slot] = first, length

    def truncate(self, slot: int, length: int) -> None:
        """Forgets what a sequence has beyond a length; at 0 it is gone."""
        if length >= self.length(slot):
            return
        assert not length or length >= self.oldest(slot), f"slot {slot} has given back what {length} needs"
        table = self._tables.get(slot, [])
        keep = _pages(length) - self._firsts.get(slot, 0) if length else 0
        self.pool.release(table[keep:])
        del table[keep:]
        self._lengths[slot] = length
        if not length:
            for of_slot in (self._tables, self._lengths, self._firsts):
                of_slot.pop(slot, None)

    def adopt(self, slot: int, pages: Iterable[int], length: int, first: int = 0) -> None:
        """A slot takes over pages that the caller holds; `first` is the number of the first of them."""
        self.truncate(slot, 0)
        if length:
            self._tables[slot] = list(pages)
            self._lengths[slot], self._firsts[slot] = length, first

    def _first_seen(self, position: int, slack: int | None = None) -> int:
        """The first page that a row at that position sees, or one to which its sequence may go back."""
        return max(0, position + 1 - self.window - (self._slack if slack is None else slack)) // PAGE

    def _give_back(self, slot: int, first: int) -> None:
        """The pages before one of that number."""
        count = first - self._firsts.get(slot, 0)
        if count > 0 and slot in self._tables:
            self.pool.release(self._tables[slot][:count])
            del self._tables[slot][:count]
            self._firsts[slot] = first

    def _count(self, slot: int) -> int:
        """Pages that a sequence has come to, with those that were given back."""
        return self._firsts.get(slot, 0) + len(self._tables.get(slot, ()))

    def _has_room(self, want: Span) -> bool:
        """Whether all that a sequence writes goes into the page that it has begun, and nobody else holds."""
        return self._count(want.slot) * PAGE >= want.end and self.pool.holders(self._tables[want.slot][-1]) == 1

    def _needed(self, wanted: Sequence[Span]) -> int:
        """Pages that the step takes: new ones, and copies of those that are shared and written into."""
        new = sum(_pages(want.end) - self._count(want.slot) for want in wanted)
        writers = Counter(page for want in wanted for page in self._written(want))
        copies = sum(min(count, self.pool.holders(page) - 1) for page, count in writers.items())
        return new + copies

    def _written(self, want: Span) -> Sequence[int]:
        """The page that a sequence has begun and goes on writing into, if there is one."""
        if not want.start % PAGE:
            return ()
        at = want.start // PAGE - self._firsts.get(want.slot, 0)
        return self._tables.get(want.slot, [])[at : at + 1]

    def _grow(self, want: Span) -> list[Copy]:
        table = self._tables.setdefault(want.slot, [])
        copies = []
        for page in self._written(want):
            if self.pool.holders(page) > 1:
                copies.append(Copy(page, self.pool.take()))
                self.pool.release([page])
                table[want.start // PAGE - self._firsts.get(want.slot, 0)] = copies[-1].target
        table.extend(self.pool.take() for _ in range(_pages(want.end) - self._count(want.slot)))
        return copies


def _pages(length: int) -> int:
    """Pages that hold so many positions."""
    return -(-length // PAGE)
