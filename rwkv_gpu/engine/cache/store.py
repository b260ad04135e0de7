"""Where sequences lie: pages of keys and values, a state, or both. Whoever uses it need not know which.

A sequence is a number, its slot. It grows by steps, goes back, ends; what it has come to can be kept and be the
beginning of others, without a byte moved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...ops.batch import Batch, Placement, Segment
from ...ops.vocabulary import PAGE
from .pager import Copy, Pager, Span
from .states import StatePages


@dataclass(frozen=True)
class PrefixHandle:
    """The beginning of a sequence that somebody holds: its pages, its state, or both."""

    length: int  # tokens
    pages: tuple[int, ...]
    state: int | None


class SequenceStore:
    """The pages and states of all sequences, by number; `copy` moves the bytes of pages that part ways."""

    def __init__(self, pager: Pager | None, states: StatePages | None, copy: Callable[[Sequence[Copy]], None]) -> None:
        self._pager = pager
        self._states = states
        self._copy = copy

    @property
    def rewinds(self) -> bool:
        """Whether a sequence can go back to any length, not only to where it has a state."""
        return self._states is None

    def place(self, spans: Sequence[Span]) -> list[Placement]:
        """Where each sequence lies that a step writes; raises CacheFull, before anything is taken, where it cannot.

        What a sequence had from the start of its span on is forgotten.
        """
        states, pager = self._states, self._pager
        if states is not None:
            states.check([(span.slot, span.start) for span in spans])
        copies = pager.prepare(spans) if pager is not None else []
        if copies:
            self._copy(copies)
        return [
            (
                () if pager is None else tuple(pager.table(span.slot)),
                None if states is None else states.advance(span.slot, span.start, span.end),
            )
            for span in spans
        ]

    def prepare(self, batch: Batch) -> Batch:
        """The same for a batch that is made already."""
        placements = self.place(batch.segments)
        placed = zip(batch.segments, placements, strict=True)
        return replace(batch, segments=tuple(s._replace(pages=pages, state=state) for s, (pages, state) in placed))

    def length(self, slot: int) -> int:
        """Tokens that a sequence has come to."""
        if self._pager is not None:
            return self._pager.length(slot)
        return self._states.length(slot) if self._states is not None else 0

    def truncate(self, slot: int, most: int) -> int:
        """Goes back to a length, or to the nearest one before it that has a state; gives where it has come to."""
        most = min(most, self.length(slot))
        if self._states is not None:
            most = self._states.nearest(slot, most)
            self._states.truncate(slot, most)
        if self._pager is not None:
            self._pager.truncate(slot, most)
        return most

    def forget(self, slot: int) -> None:
        """Ends a sequence."""
        self.truncate(slot, 0)

    def state(self, slot: int) -> int:
        """The page of its newest state."""
        assert self._states is not None, "this model has no states"
        return self._states.page(slot, self._states.length(slot))

    def keep(self, slot: int, most: int, *, whole: bool = False) -> PrefixHandle | None:
        """Holds the beginning of a sequence, up to a length or the nearest before it that can be gone back to.

        With `whole`, not the page that it may still write into, where it can do without.
        """
        length = min(most, self.length(slot))
        if self._states is not None:
            length = self._states.nearest(slot, length)
        elif whole:
            length -= length % PAGE
        if not length:
            return None
        pages: tuple[int, ...] = ()
        state = None
        if self._pager is not None:
            pages = self._pager.pool.hold(self._pager.table(slot)[: -(-length // PAGE)])
        if self._states is not None:
            [state] = self._states.pool.hold([self._states.page(slot, length)])
        return PrefixHandle(length, pages, state)

    def adopt(self, slot: int, handle: PrefixHandle, length: int) -> None:
        """A sequence begins as what was handle, up to a length; the caller's hold stays."""
        assert length == handle.length or (self.rewinds and length < handle.length)
        if self._pager is not None:
            self._pager.adopt(slot, self._pager.pool.hold(handle.pages[: -(-length // PAGE)]), length)
        if self._states is not None:
            assert handle.state is not None
            self._states.adopt(slot, handle.state, length)

    def release(self, handle: PrefixHandle) -> None:
        """Gives back what was handle."""
        if self._pager is not None:
            self._pager.pool.release(handle.pages)
        if self._states is not None and handle.state is not None:
            self._states.pool.release([handle.state])

    def begin(self, slot: int, length: int) -> None:
        """A sequence of that length whose bytes are yet to be written."""
        self.forget(slot)
        if self._states is not None:
            self._states.check([(slot, 0)])
        if length and self._pager is not None:
            self._pager.prepare([Segment(0, length, slot, 0)])
        if length and self._states is not None:
            self._states.advance(slot, 0, length)

    @property
    def free(self) -> tuple[int, int]:
        """Pages and states that nobody holds."""
        pages = self._pager.pool.free if self._pager is not None else 0
        return pages, self._states.pool.free if self._states is not None else 0
