"""Pages of all sequences: reference counts, sharing, and copy-on-write. Uses no GPU.

A page holds PAGE positions of one sequence, in every layer. Sequences with the same beginning share its pages. A shared
page is never written: a sequence that writes into one gets a copy first. Layers with a window have their own pager,
which frees pages that no later row sees.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ...errors import CacheFull, ContextFull
from ...ops.vocabulary import PAGE


@dataclass(frozen=True)
class Copy:
    """A page that must be copied to another before a step."""

    source: int
    target: int


class Span(Protocol):
    """The positions that a step writes for one slot."""

    @property
    def slot(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int:
        """The length of the sequence after the step."""

    @property
    def keeps(self) -> bool:
        """True if a state is written after each of its rows."""

    @property
    def unverified(self) -> int:
        """Positions before `start` that may turn out to be wrong; the step may read the state before any of them."""


@dataclass(frozen=True)
class HeldPages:
    """Consecutive pages of a sequence, with a reference to each."""

    first: int  # index of the first page within the sequence
    pages: tuple[int, ...]

    @property
    def end(self) -> int:
        """Number of pages up to the end of the sequence, including freed ones before the first."""
        return self.first + len(self.pages)

    @cached_property
    def table(self) -> tuple[int, ...]:
        """The pages in position order; the first also replaces the freed ones before it."""
        return (*self.pages[:1] * self.first, *self.pages)


NO_PAGES = HeldPages(0, ())


class PagePool:
    """A pool of pages with reference counts. Each reference must be released once."""

    def __init__(self, pages: int) -> None:
        self._holders = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # used as a stack; lowest page first

    @property
    def pages(self) -> int:
        """Total number of pages."""
        return len(self._holders)

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def holders(self, page: int) -> int:
        """The reference count of a page."""
        return self._holders[page]

    def take(self) -> int:
        """Takes a free page, with one reference."""
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def hold(self, pages: Iterable[int]) -> tuple[int, ...]:
        """Adds a reference to pages that are in use."""
        held = tuple(pages)
        for page in held:
            assert self._holders[page], f"page {page} is free"
            self._holders[page] += 1
        return held

    def release(self, pages: Iterable[int]) -> None:
        """Removes a reference from each page. Pages of one sequence are later taken again in the same order."""
        for page in reversed(tuple(pages)):
            self._holders[page] -= 1
            assert self._holders[page] >= 0, f"page {page} was released too often"
            if not self._holders[page]:
                self._free.append(page)


class Pager:
    """A page pool with a page table for each slot.

    With a window, a sequence keeps the pages that its next row sees, and `slack` positions before them for going back.
    """

    def __init__(self, pages: int, context: int, window: int = 0, slack: int = 0) -> None:
        self.context = context  # maximum positions of a sequence
        self.window = window  # 0 keeps all pages
        self._slack = slack
        self.pool = PagePool(pages)
        self._held: dict[int, HeldPages] = {}  # pages still in use; earlier ones were freed
        self._lengths: dict[int, int] = {}

    def table(self, slot: int) -> tuple[int, ...]:
        """The pages of a sequence in position order; the first page in use also replaces the freed ones before it."""
        return self._held.get(slot, NO_PAGES).table

    def held(self, slot: int) -> HeldPages:
        """The pages that a sequence has in use."""
        return self._held.get(slot, NO_PAGES)

    def oldest(self, slot: int) -> int:
        """The smallest length above 0 to which a sequence can go back without needing freed pages."""
        first = self.held(slot).first
        return first * PAGE + self.window - 1 if first else 0

    def length(self, slot: int) -> int:
        """Number of positions of a sequence."""
        return self._lengths.get(slot, 0)

    def prepare(self, wanted: Sequence[Span]) -> list[Copy]:
        """Gives each sequence writable pages for a step. The caller must make the returned copies before the step.

        Positions from `start` on are discarded. Raises before taking any page if there are too few.
        """
        return self.take(wanted, self.check(wanted))

    def check(self, wanted: Sequence[Span]) -> list[Span]:
        """Discards positions that a step rewrites, and frees pages that it does not see; raises if there are too few
        pages.

        Returns the spans that need new pages, for `take`. The other spans write into a page that no other sequence
        uses.
        """
        for want in wanted:
            if want.end > self.context:
                raise ContextFull(
                    f"a sequence of {want.end:,} tokens exceeds the available context size of {self.context:,}; "
                    "shorten it, or load the model with a larger context"
                )
        growing = []
        for want in wanted:
            slot, start = want.slot, want.start
            length = self._lengths.get(slot, 0)
            assert start <= length, f"slot {slot} has no position {start - 1}"
            if start < length:
                self.truncate(slot, start)
            if self.window:
                self._give_back(slot, self._first_seen(start))
            held = self._held.get(slot, NO_PAGES)
            if held.end * PAGE < want.end or self.pool.holders(held.pages[-1]) > 1:
                growing.append(want)
        if growing and (needed := self._needed(growing)) > self.pool.free:
            raise CacheFull(
                f"the step needs {needed:,} pages of {PAGE} tokens, but only {self.pool.free:,} of "
                f"{self.pool.pages:,} are free; end a sequence, or load the model with room for more"
            )
        return growing

    def take(self, wanted: Sequence[Span], growing: Sequence[Span]) -> list[Copy]:
        """Takes the pages for a step that passed `check`."""
        copies: list[Copy] = []
        for want in wanted:
            self._lengths[want.slot] = want.end
        for want in growing:
            copies += self._grow(want)
        return copies

    def begin(self, slot: int, length: int) -> None:
        """Creates a sequence of that length without contents: takes the pages that its next row sees."""
        first = self._first_seen(length, slack=0) if self.window else 0
        if _pages(length) - first > self.pool.free:
            raise CacheFull(
                f"a sequence of {length:,} tokens needs more pages than the {self.pool.free:,} that are free"
            )
        self._held[slot] = HeldPages(first, self._taken(_pages(length) - first))
        self._lengths[slot] = length

    def truncate(self, slot: int, length: int) -> None:
        """Discards positions beyond a length; 0 removes the sequence."""
        if length >= self.length(slot):
            return
        assert not length or length >= self.oldest(slot), f"slot {slot} has given back what {length} needs"
        held = self.held(slot)
        keep = _pages(length) - held.first if length else 0
        self.pool.release(held.pages[keep:])
        self._held[slot], self._lengths[slot] = HeldPages(held.first, held.pages[:keep]), length
        if not length:
            del self._held[slot], self._lengths[slot]

    def adopt(self, slot: int, pages: Iterable[int], length: int, first: int = 0) -> None:
        """Gives a slot pages to which the caller holds references. `first` is the index of the first of them."""
        self.truncate(slot, 0)
        if length:
            self._held[slot], self._lengths[slot] = HeldPages(first, tuple(pages)), length

    def _first_seen(self, position: int, slack: int | None = None) -> int:
        """Index of the first page seen by a row at that position, or by a row up to `slack` positions before it."""
        return max(0, position + 1 - self.window - (self._slack if slack is None else slack)) // PAGE

    def _give_back(self, slot: int, first: int) -> None:
        """Frees the pages before index `first`."""
        held = self.held(slot)
        count = first - held.first
        if count > 0:
            self.pool.release(held.pages[:count])
            self._held[slot] = HeldPages(first, held.pages[count:])

    def _needed(self, wanted: Sequence[Span]) -> int:
        """Number of pages that a step takes: new ones, and copies of shared ones that it writes."""
        new = sum(_pages(want.end) - self.held(want.slot).end for want in wanted)
        writers = Counter(page for want in wanted for page in self._written(want))
        copies = sum(min(count, self.pool.holders(page) - 1) for page, count in writers.items())
        return new + copies

    def _written(self, want: Span) -> Sequence[int]:
        """The partly filled page that a sequence continues to write, if there is one."""
        if not want.start % PAGE:
            return ()
        held = self.held(want.slot)
        at = want.start // PAGE - held.first
        return held.pages[at : at + 1]

    def _grow(self, want: Span) -> list[Copy]:
        held = self.held(want.slot)
        pages, copies = [*held.pages], []
        for page in self._written(want):
            if self.pool.holders(page) > 1:
                copies.append(Copy(page, self.pool.take()))
                self.pool.release([page])
                pages[want.start // PAGE - held.first] = copies[-1].target
        self._held[want.slot] = HeldPages(held.first, (*pages, *self._taken(_pages(want.end) - held.end)))
        return copies

    def _taken(self, count: int) -> tuple[int, ...]:
        """Takes `count` free pages."""
        return tuple(self.pool.take() for _ in range(count))


def _pages(length: int) -> int:
    """Number of pages for `length` positions."""
    return -(-length // PAGE)
