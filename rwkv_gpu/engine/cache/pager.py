"""The pages of all sequences: who holds which, what is shared, what must be copied before it is written. Knows no GPU.

A page holds PAGE positions of one sequence, in every layer. Sequences with the same beginning share its pages; a shared
page is never written: whoever writes into it gets a copy first.
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


class Pager:
    """A pool of pages and a page table for each slot, with a count of the holders of each page."""

    def __init__(self, pages: int, context: int) -> None:
        self.context = context  # positions that a sequence may have
        self.pool = PagePool(pages)
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def table(self, slot: int) -> Sequence[int]:
        """The pages of a sequence, in the order of its positions."""
        return self._tables.get(slot, [])

    def length(self, slot: int) -> int:
        """Positions that a sequence has."""
        return self._lengths.get(slot, 0)

    def prepare(self, wanted: Sequence[Span]) -> list[Copy]:
        """Gives each sequence pages of its own for what a step writes; the copies must be made before it.

        What a sequence had from `start` on is forgotten. Raises before any page is taken where there are too few.
        """
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
        growing = [want for want in wanted if not self._has_room(want)]
        if growing and (needed := self._needed(growing)) > self.pool.free:
            raise CacheFull(
                f"the step needs {needed:,} pages of {PAGE} tokens, but only {self.pool.free:,} of "
                f"{self.pool.pages:,} are free; end a sequence, or load the model with room for more"
            )
        self._lengths.update([(want.slot, want.end) for want in wanted])
        return [copy for want in growing for copy in self._grow(want)]

    def truncate(self, slot: int, length: int) -> None:
        """Forgets what a sequence has beyond a length; at 0 it is gone."""
        if length >= self.length(slot):
            return
        table = self._tables.get(slot, [])
        keep = _pages(length)
        self.pool.release(table[keep:])
        del table[keep:]
        self._lengths[slot] = length
        if not length:
            self._tables.pop(slot, None)
            self._lengths.pop(slot, None)

    def adopt(self, slot: int, pages: Iterable[int], length: int) -> None:
        """A slot takes over pages that the caller holds."""
        self.truncate(slot, 0)
        if length:
            self._tables[slot] = list(pages)
            self._lengths[slot] = length

    def _has_room(self, want: Span) -> bool:
        """Whether all that a sequence writes goes into the page that it has begun, and nobody else holds."""
        table = self.table(want.slot)
        return len(table) * PAGE >= want.end and self.pool.holders(table[-1]) == 1

    def _needed(self, wanted: Sequence[Span]) -> int:
        """Pages that the step takes: new ones, and copies of those that are shared and written into."""
        new = sum(_pages(want.end) - len(self.table(want.slot)) for want in wanted)
        writers = Counter(page for want in wanted for page in self._written(want))
        copies = sum(min(count, self.pool.holders(page) - 1) for page, count in writers.items())
        return new + copies

    def _written(self, want: Span) -> Sequence[int]:
        """The page that a sequence has begun and goes on writing into, if there is one."""
        return self.table(want.slot)[want.start // PAGE :][:1] if want.start % PAGE else ()

    def _grow(self, want: Span) -> list[Copy]:
        table = self._tables.setdefault(want.slot, [])
        copies = []
        for page in self._written(want):
            if self.pool.holders(page) > 1:
                copies.append(Copy(page, self.pool.take()))
                self.pool.release([page])
                table[want.start // PAGE] = copies[-1].target
        table.extend(self.pool.take() for _ in range(_pages(want.end) - len(table)))
        return copies


def _pages(length: int) -> int:
    """Pages that hold so many positions."""
    return -(-length // PAGE)
