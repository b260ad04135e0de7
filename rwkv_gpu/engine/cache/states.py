"""States of recurrent sequences as pages: a step reads one page and writes another. Uses no GPU.

So the previous state stays intact. The last few states of each sequence are kept for going back. Storing a state,
starting another sequence from it, or returning to it moves no bytes.
"""

from collections.abc import Sequence

from ...errors import CacheFull
from .pager import PagePool, Span


class StatePages:
    """A pool of states. Each sequence has its last few, indexed by the number of tokens they have seen.

    A state whose two neighbours are at most `spacing` tokens from each other is dropped once no step reads it. Going
    back to it then starts at the state before.
    """

    def __init__(self, pages: int, held: int, spacing: int = 1) -> None:
        assert held >= 2, "a step reads one state and writes another"
        self.pool = PagePool(pages)
        self._held = held  # maximum states of one sequence
        self._spacing = spacing
        self._tables: dict[int, list[tuple[int, int]]] = {}  # (length, page), longest last

    def length(self, slot: int) -> int:
        """Number of tokens in a sequence's newest state."""
        return self._tables[slot][-1][0] if slot in self._tables else 0

    def nearest(self, slot: int, length: int) -> int:
        """The largest length up to `length` that has a state; 0 needs none."""
        return max((at for at, _ in self._tables.get(slot, []) if at <= length), default=0)

    def page(self, slot: int, length: int) -> int:
        """The page of a sequence's state at a length that has one."""
        return dict(self._tables[slot])[length]

    def check(self, wanted: Sequence[Span]) -> None:
        """Raises if too few states are free for a step that writes these positions."""
        needed = 0
        for span in wanted:
            needed += span.end - span.start if span.keeps else 1
        if needed <= self.pool.free:
            return
        given_up = [page for span in wanted for page in self._split(span.slot, span.start, span.unverified)[1]]
        free = self.pool.free + sum(self.pool.holders(page) == 1 for page in given_up)
        if needed > free:
            raise CacheFull(
                f"the step needs {needed:,} states, but only {free:,} of {self.pool.pages:,} are free; "
                "end a sequence, or load the model with room for more"
            )

    def advance(self, slot: int, start: int, end: int, unverified: int = 0) -> tuple[int, int]:
        """Returns the state that a step reads and the state that it writes. Discards states beyond `start`."""
        table = self._begin_step(slot, start, unverified)
        page = self.pool.take()
        source = table[-1][1] if table else page
        table.append((end, page))
        return source, page

    def advance_each(
        self, slot: int, start: int, end: int, unverified: int = 0
    ) -> tuple[tuple[int, int], tuple[int, ...]]:
        """Like `advance`, for a step that writes a state after each row; also returns the states in between."""
        table = self._begin_step(slot, start, unverified)
        pages = [self.pool.take() for _ in range(start, end)]
        source = table[-1][1] if table else pages[-1]
        table.extend(zip(range(start + 1, end + 1), pages, strict=True))
        return (source, pages[-1]), tuple(pages[:-1])

    def _begin_step(self, slot: int, start: int, unverified: int) -> list[tuple[int, int]]:
        """Discards states that the step does not need. Returns the others; the step reads the last."""
        table, given_up = self._split(slot, start, unverified)
        assert (table[-1][0] if table else 0) == start, f"slot {slot} has no state at {start}"
        self.pool.release(given_up)
        self._tables[slot] = table
        return table

    def truncate(self, slot: int, length: int) -> None:
        """Discards the states beyond a length; 0 removes the sequence."""
        table = self._tables.get(slot, [])
        kept = table[: _count(table, length)]
        self.pool.release(page for _, page in table[len(kept) :])
        if kept:
            self._tables[slot] = kept
        else:
            self._tables.pop(slot, None)

    def correct(self, slot: int, length: int, wrong: int) -> None:
        """Removes `wrong` tokens after a length from a sequence, and from the lengths of all later states."""
        table = self._tables.get(slot, [])
        self.pool.release(page for at, page in table if length < at <= length + wrong)
        self._tables[slot] = [
            (at if at <= length else at - wrong, page) for at, page in table if not length < at <= length + wrong
        ]

    def adopt(self, slot: int, page: int, length: int) -> None:
        """Starts a sequence from a state that another holder has; adds a reference."""
        self.truncate(slot, 0)
        self.pool.hold([page])
        self._tables[slot] = [(length, page)]

    def _split(self, slot: int, start: int, unverified: int = 0) -> tuple[list[tuple[int, int]], list[int]]:
        """Splits off the states before those that a step may read: returns the states to keep, and pages to release."""
        kept: list[tuple[int, int]] = []
        given_up: list[int] = []
        maybe: list[tuple[int, int]] = []  # the state after each of the last tokens, some of which may be wrong
        for one in self._tables.get(slot, ()):
            if one[0] > start:
                given_up.append(one[1])
                continue
            if one[0] > start - unverified:
                maybe.append(one)
                continue
            while len(kept) > 1 and one[0] - kept[-2][0] <= self._spacing:
                given_up.append(kept.pop()[1])
            kept.append(one)
        while len(kept) >= max(2, self._held - len(maybe)):
            given_up.append(kept.pop(0)[1])
        return kept + maybe, given_up


def _count(table: Sequence[tuple[int, int]], length: int) -> int:
    """Number of states whose length is at most `length`."""
    count = len(table)
    while count and table[count - 1][0] > length:
        count -= 1
    return count
