"""The pages of all sequences: who holds which, what is shared, what must be copied before it is written. Knows no GPU.

A page holds PAGE positions of one sequence, in every layer. Sequences with the same beginning share its pages; a shared
page is never written: whoever writes into it gets a copy first. Layers with a window have a pager of their own, which
gives back the pages that no further row sees.
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

    @property
    def end(self) -> int:
        """Pages that the sequence has come to, with those before the first."""
        return self.first + len(self.pages)

    @cached_property
    def table(self) -> tuple[int, ...]:
        """The pages in the order of positions; the first stands for those before it."""
        return (*self.pages[:1] * self.first, *self.pages)


NO_PAGES = HeldPages(0, ())


class PagePool:
    """So many pages, each free or held; whoever holds one releases it as often as it was held."""

    def __init__(self, pages: int) -> None:
        self._holders = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # taken from the end, lowest first

    @property
    def pages(self) -> int:
        """All of them."""
        return len(self._holders)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def holders(self, page: int) -> int:
        """How often a page is held."""
        return self._holders[page]

    def take(self) -> int:
        """A free page, held once."""
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def hold(self, pages: Iterable[int]) -> tuple[int, ...]:
        """Keeps pages that somebody has, until they are released once more."""
        held = tuple(pages)
        for page in held:
            assert self._holders[page], f"page {page} is nobody's"
            self._holders[page] += 1
        return held

    def release(self, pages: Iterable[int]) -> None:
        """Gives back pages that were taken or held; those of one sequence are taken again in their order."""
        for page in reversed(tuple(pages)):
            self._holders[page] -= 1
            assert self._holders[page] >= 0, f"page {page} was released too often"
            if not self._holders[page]:
                self._free.append(page)


class Pager:
    """A pool of pages and a page table for each slot, with a count of the holders of each page.

    With a window, a sequence keeps what its next row sees, and `slack` positions before it, to which it may go back.
    """

    def __init__(self, pages: int, context: int, window: int = 0, slack: int = 0) -> None:
        self.context = context  # positions that a sequence may have
        self.window = window  # 0 keeps all
        self._slack = slack
        self.pool = PagePool(pages)
        self._held: dict[int, HeldPages] = {}  # the pages that are kept; those before them were given back
        self._lengths: dict[int, int] = {}

    def table(self, slot: int) -> tuple[int, ...]:
        """The pages of a sequence, in the order of its positions; the first that is kept stands for those before it."""
        return self._held.get(slot, NO_PAGES).table

    def held(self, slot: int) -> HeldPages:
        """The pages that a sequence keeps."""
        return self._held.get(slot, NO_PAGES)

    def oldest(self, slot: int) -> int:
        """The least length, but 0, that a sequence can go back to: its next row sees nothing that was given back."""
        first = self.held(slot).first
        return first * PAGE + self.window - 1 if first else 0

    def length(self, slot: int) -> int:
        """Positions that a sequence has."""
        return self._lengths.get(slot, 0)

    def prepare(self, wanted: Sequence[Span]) -> list[Copy]:
        """Gives each sequence pages of its own for what a step writes; the copies must be made before it.

        What a sequence had from `start` on is forgotten. Raises before any page is taken where there are too few.
        """
        return self.take(wanted, self.check(wanted))

    def check(self, wanted: Sequence[Span]) -> list[Span]:
        """Forgets what a step writes anew and gives back what it does not see; raises where pages are too few.

        It gives those that need a page, for `take`: others write into one that they have begun, and nobody else holds.
        """
        for want in wanted:
            if want.end > self.context:
                raise ContextFull(
                    f"a sequence of {want.end:,} tokens does not fit the context of {self.context:,}; "
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
        """The pages of a step that was checked."""
        copies: list[Copy] = []
        for want in wanted:
            self._lengths[want.slot] = want.end
        for want in growing:
            copies += self._grow(want)
        return copies

    def begin(self, slot: int, length: int) -> None:
        """A sequence of that length whose bytes are yet to be written: pages for what its next row sees."""
        self.truncate(slot, 0)
        first = self._first_seen(length, slack=0) if self.window else 0
        if _pages(length) - first > self.pool.free:
            raise CacheFull(
                f"a sequence of {length:,} tokens needs more pages than the {self.pool.free:,} that are free"
            )
        self._held[slot] = HeldPages(first, self._taken(_pages(length) - first))
        self._lengths[slot] = length

    def truncate(self, slot: int, length: int) -> None:
        """Forgets what a sequence has beyond a length; at 0 it is gone."""
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
        """A slot takes over pages that the caller holds; `first` is the number of the first of them."""
        self.truncate(slot, 0)
        if length:
            self._held[slot], self._lengths[slot] = HeldPages(first, tuple(pages)), length

    def _first_seen(self, position: int, slack: int | None = None) -> int:
        """The first page that a row at that position sees, or one to which its sequence may go back."""
        return max(0, position + 1 - self.window - (self._slack if slack is None else slack)) // PAGE

    def _give_back(self, slot: int, first: int) -> None:
        """The pages before one of that number."""
        held = self.held(slot)
        count = first - held.first
        if count > 0 and held.pages:
            self.pool.release(held.pages[:count])
            self._held[slot] = HeldPages(first, held.pages[count:])

    def _needed(self, wanted: Sequence[Span]) -> int:
        """Pages that the step takes: new ones, and copies of those that are shared and written into."""
        new = sum(_pages(want.end) - self.held(want.slot).end for want in wanted)
        writers = Counter(page for want in wanted for page in self._written(want))
        copies = sum(min(count, self.pool.holders(page) - 1) for page, count in writers.items())
        return new + copies

    def _written(self, want: Span) -> Sequence[int]:
        """The page that a sequence has begun and goes on writing into, if there is one."""
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
        """So many pages that were free."""
        return tuple(self.pool.take() for _ in range(count))


def _pages(length: int) -> int:
    """Pages that hold so many positions."""
    return -(-length // PAGE)
