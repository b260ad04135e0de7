"""Stores sequences: pages of keys and values, a state, or both, behind one interface.

A sequence is identified by its slot number. Steps extend it; it can be truncated and removed. A prefix of it can be
kept and can start other sequences, without copying.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ...ops.batch import Batch, Placement, Segment
from ...ops.vocabulary import PAGE
from .pager import Copy, HeldPages, Pager, Span
from .states import StatePages


@dataclass(frozen=True)
class PrefixHandle:
    """A reference to the beginning of a sequence: its pages, its state, or both."""

    length: int  # tokens
    pages: tuple[int, ...]
    state: int | None
    windows: Mapping[int, HeldPages] = field(default_factory=dict)  # pages of layers with a window, by window size
    oldest: int = 0  # the smallest length from which a sequence can continue

    def pages_by_window(self) -> Sequence[tuple[int, int]]:
        """Every page, with the window of its layers."""
        windows = ((size, page) for size, held in self.windows.items() for page in held.pages)
        return [*((0, page) for page in self.pages), *windows]


class CopyPages(Protocol):
    """Copies the contents of pages, in all layers with a given window."""

    def __call__(self, copies: Sequence[Copy], window: int = 0, /) -> None: ...


@dataclass(frozen=True)
class WindowPages:
    """The pages of layers with one window size."""

    pager: Pager
    page_bytes: int  # over all these layers


class SequenceStore:
    """The pages and states of all sequences, by slot."""

    def __init__(
        self,
        pager: Pager | None,
        states: StatePages | None,
        copy: CopyPages,
        windows: Mapping[int, WindowPages] | None = None,
    ) -> None:
        self._pager = pager
        self._states = states
        self._copy = copy
        self.windows = windows or {}
        self._windows = {size: pages.pager for size, pages in self.windows.items()}
        self._pagers = self._windows if pager is None else {0: pager, **self._windows}
        # Sequences without states, which keep all pages, can go back to any length.
        self.rewinds = states is None and not self.windows
        self._written: dict[int, int] = {}  # smallest valid length of sequences restored without their beginning

    @property
    def recurrent(self) -> bool:
        """True if sequences have a state, and so can go back only to lengths with a stored state."""
        return self._states is not None

    def place(self, spans: Sequence[Span]) -> list[Placement]:
        """Places what a step writes for each sequence. Raises CacheFull, before taking anything, if there is no room.

        Positions from the start of each span on are discarded.
        """
        states, pager, windows = self._states, self._pager, self._windows.items()
        if states is not None:
            states.check(spans)
        growing = [each.check(spans) for each in self._pagers.values()]
        for (window, each), grows in zip(self._pagers.items(), growing, strict=True):
            if copies := each.take(spans, grows):
                self._copy(copies, window)
        placements: list[Placement] = []
        for span in spans:
            pages = () if pager is None else pager.table(span.slot)
            windowed = tuple([(window, each.table(span.slot)) for window, each in windows]) if windows else ()
            state: tuple[int, int] | None = None
            kept: tuple[int, ...] = ()
            if states is not None and span.keeps:
                state, kept = states.advance_each(span.slot, span.start, span.end, span.unverified)
            elif states is not None:
                state = states.advance(span.slot, span.start, span.end, span.unverified)
            placements.append((pages, state, windowed, kept))
        return placements

    def prepare(self, batch: Batch) -> Batch:
        """Returns the batch with its placement filled in."""
        placed = zip(batch.segments, self.place(batch.segments), strict=True)
        segments = [Segment(s.first, s.count, s.slot, s.start, *placement) for s, placement in placed]
        return replace(batch, segments=tuple(segments))

    def length(self, slot: int) -> int:
        """Number of tokens of a sequence."""
        if self._pager is not None:
            return self._pager.length(slot)
        return self._states.length(slot) if self._states is not None else 0

    def truncate(self, slot: int, most: int) -> int:
        """Goes back to length `most`, or to the nearest possible length before it. Returns the new length."""
        most = min(most, self.length(slot))
        if self._states is not None:
            most = self._states.nearest(slot, most)
        if most < self._oldest(slot):
            most = 0
        if self._states is not None:
            self._states.truncate(slot, most)
        for pager in (self._pager, *self._windows.values()):
            if pager is not None:
                pager.truncate(slot, most)
        if not most:
            self._written.pop(slot, None)
        return most

    def correct(self, slot: int, length: int, wrong: int) -> int:
        """Removes `wrong` tokens after a length, which steps in flight count as right. Returns the new length."""
        if self._states is not None:
            self._states.correct(slot, length, wrong)
        for pager in self._pagers.values():
            pager.truncate(slot, pager.length(slot) - wrong)
        return self.length(slot)

    def forget(self, slot: int) -> None:
        """Removes a sequence."""
        self.truncate(slot, 0)

    def state(self, slot: int) -> int:
        """The page of a sequence's newest state."""
        assert self._states is not None, "this model has no states"
        return self._states.page(slot, self._states.length(slot))

    def keep(self, slot: int, most: int, *, whole: bool = False) -> PrefixHandle | None:
        """Takes a reference to the beginning of a sequence, up to length `most` or the nearest possible one before it.

        With `whole`, leaves out the last page if it may still be written and is not needed.
        """
        length = min(most, self.length(slot))
        if self._states is not None:
            length = self._states.nearest(slot, length)
        elif whole:
            length -= length % PAGE
        if not length or length < self._oldest(slot):
            return None
        pages: tuple[int, ...] = ()
        state = None
        if self._pager is not None:
            pages = self._pager.pool.hold(self._pager.table(slot)[: -(-length // PAGE)])
        if self._states is not None:
            [state] = self._states.pool.hold([self._states.page(slot, length)])
        windows = {size: _held(pager, pager.held(slot), length) for size, pager in self._windows.items()}
        oldest = length if state is not None else self._oldest(slot)
        return PrefixHandle(length, pages, state, windows, oldest)

    def adopt(self, slot: int, handle: PrefixHandle, length: int) -> None:
        """Starts a sequence from a handle, up to a length. The caller keeps its own reference."""
        assert handle.oldest <= length <= handle.length
        if self._pager is not None:
            self._pager.adopt(slot, self._pager.pool.hold(handle.pages[: -(-length // PAGE)]), length)
        if self._states is not None:
            assert handle.state is not None
            self._states.adopt(slot, handle.state, length)
        for size, pager in self._windows.items():
            held = _held(pager, handle.windows[size], length)
            pager.adopt(slot, held.pages, length, held.first)
        self._written[slot] = handle.oldest

    def release(self, handle: PrefixHandle) -> None:
        """Releases a handle."""
        if self._pager is not None:
            self._pager.pool.release(handle.pages)
        if self._states is not None:
            assert handle.state is not None
            self._states.pool.release([handle.state])
        for size, pager in self._windows.items():
            pager.pool.release(handle.windows[size].pages)

    def begin(self, slot: int, length: int, oldest: int = 0) -> None:
        """Creates a sequence of that length without contents. It cannot go back to lengths below `oldest`."""
        self.forget(slot)
        self._written[slot] = oldest
        if self._states is not None:
            self._states.check([Segment(0, length, slot, 0)])
        if length and self._pager is not None:
            self._pager.prepare([Segment(0, length, slot, 0)])
        for pager in self._windows.values() if length else ():
            pager.begin(slot, length)
        if length and self._states is not None:
            self._states.advance(slot, 0, length)

    @property
    def free(self) -> tuple[int, int]:
        """Numbers of free pages and free states."""
        pages = self._pager.pool.free if self._pager is not None else 0
        return pages, self._states.pool.free if self._states is not None else 0

    def _oldest(self, slot: int) -> int:
        """The smallest length above 0 to which the layers with a window can go back."""
        return max((self._written.get(slot, 0), *(pager.oldest(slot) for pager in self._windows.values())))


def _held(pager: Pager, held: HeldPages, length: int) -> HeldPages:
    """Takes another reference to pages, up to a length."""
    return HeldPages(held.first, pager.pool.hold(held.pages[: max(0, -(-length // PAGE) - held.first)]))
