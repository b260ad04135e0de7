"""The batch of one step: flat rows of token ids, and which of them belong together. Knows no model and no text."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .vocabulary import PAGE

Pages = tuple[int, ...]
Windows = tuple[tuple[int, Pages], ...]
Placement = tuple[Pages, tuple[int, int] | None, Windows, Pages]  # of a sequence: fields of `Segment`, from `pages` on

SEGMENT_WORDS = 16  # of a `Segment` in `shaders/lib/step.wgsl`
MOST_KEPT = 8  # states that a segment can keep on its way


class Segment(NamedTuple):
    """Consecutive rows of a step that are the next tokens of one sequence."""

    first: int  # row
    count: int  # type: ignore[assignment]  # of rows, at least 1; a tuple's own `count` has no use here
    slot: int  # the sequence's number; where nobody places it, its state lies there
    start: int  # position of the first row in the sequence; at 0 the state starts from zeros, whatever `source` holds
    pages: tuple[int, ...] = ()  # that hold positions 0 .. of the sequence, for models that attend
    state: tuple[int, int] | None = None  # for recurrent models: the state that is read, and the one that is written

    # Of caches that keep a window only: its size, and pages by position; behind it, the first that is kept stands in.
    windows: Windows = ()
    kept: Pages = ()  # states that are written on the way: none, or one after each row but the last

    @property
    def end(self) -> int:
        """The length of the sequence after the step."""
        return self.start + self.count

    @property
    def keeps(self) -> bool:
        """Whether a state is written after each of its rows."""
        return bool(self.kept)

    @property
    def positions(self) -> range:
        """Those of its rows in the sequence."""
        return range(self.start, self.end)

    def table(self, window: int) -> Pages:
        """The pages of a cache with such a window."""
        return next((pages for size, pages in self.windows if size == window), self.pages)

    def past(self, window: int = 0) -> npt.NDArray[np.int64]:
        """The row of all pages that holds each of its positions, after the step."""
        rows = np.array(self.table(window), np.int64)[:, None] * PAGE + np.arange(PAGE)
        return rows.reshape(-1)[: self.end]

    @property
    def steps(self) -> "Sequence[Segment]":
        """For ops with a state, one after the other: the segment, or each of its rows if their states are kept."""
        if not self.kept:
            return (self,)
        pages = [self.source, *self.kept, self.target]
        rows = range(self.count)
        return [Segment(self.first + i, 1, self.slot, self.start + i, state=(pages[i], pages[i + 1])) for i in rows]

    @property
    def source(self) -> int:
        """The state that the step reads."""
        return self.slot if self.state is None else self.state[0]

    @property
    def target(self) -> int:
        """The state that it writes, maybe the same."""
        return self.slot if self.state is None else self.state[1]


@dataclass(frozen=True)
class Batch:
    """T rows: each is in one segment, the segments lie in order, and no slot is used twice."""

    ids: npt.NDArray[Any]  # uint32 [T]
    segments: tuple[Segment, ...]
    outputs: tuple[int, ...]  # the rows whose logits are asked for
    adapters: npt.NDArray[np.float32] | None = None  # how much each row wants of each column of adapters, [T, R]

    @classmethod
    def of(
        cls,
        sequences: Iterable[tuple[int, int, Sequence[int]]],
        *,
        every: bool = False,
        wanted: Sequence[int] | None = None,
        placements: Sequence[Placement] | None = None,
    ) -> "Batch":
        """The next tokens of sequences, each (slot, start, ids), and where each lies if that is known.

        It asks for the last row of each, or as many of its last rows as are `wanted`, or for every row.
        """
        ids: list[int] = []
        segments = []
        for number, (slot, start, tokens) in enumerate(sequences):
            placement = () if placements is None else placements[number]
            segments.append(Segment(len(ids), len(tokens), slot, start, *placement))
            ids.extend(tokens)
        outputs: Iterable[int] = range(len(ids))
        if not every:
            counts = itertools.repeat(1) if wanted is None else wanted
            ends = [segment.first + segment.count for segment in segments]
            rows = (range(end - int(count), end) for end, count in zip(ends, counts, strict=False))
            outputs = itertools.chain.from_iterable(rows)
        return cls(np.array(ids, np.uint32), tuple(segments), tuple(outputs))

    @property
    def rows(self) -> int:
        """T"""
        return len(self.ids)

    @property
    def steps(self) -> "Iterator[Segment]":
        """The segments for ops with a state, in order: see `Segment.steps`."""
        return itertools.chain.from_iterable(segment.steps for segment in self.segments)

    @property
    def single(self) -> bool:
        """Whether every sequence has one row, as in decode."""
        return self.rows == len(self.segments)

    def apart(self) -> "Batch":
        """The same rows, each as a segment of its own that lies in the same pages; for models without a state.

        A row then finds its pages by its own number, and sees what rows before it write, once that is written.
        """
        rows = [
            segment._replace(first=segment.first + i, count=1, start=segment.start + i)
            for segment in self.segments
            for i in range(segment.count)
        ]
        return replace(self, segments=tuple(rows))

    def placed(
        self, pages: Mapping[int, Sequence[int]] | None = None, states: Mapping[int, tuple[int, int]] | None = None
    ) -> "Batch":
        """The same with the pages of each slot, and with the states that it reads and writes."""
        segments = (
            Segment(
                s.first,
                s.count,
                s.slot,
                s.start,
                s.pages if pages is None else tuple(pages[s.slot]),
                s.state if states is None else states[s.slot],
                s.windows,
                s.kept,
            )
            for s in self.segments
        )
        return Batch(self.ids, tuple(segments), self.outputs)

    def places(self, window: int = 0) -> npt.NDArray[np.uint32]:
        """The position of each row in its sequence, and the row of all pages that holds it. [T, 2]"""
        places: list[tuple[int, int]] = []
        for segment in self.segments:
            count, start, pages = segment.count, segment.start, segment.table(window)
            if count == 1 and pages:
                places.append((start, pages[start // PAGE] * PAGE + start % PAGE))
            elif pages:
                places.extend((at, pages[at // PAGE] * PAGE + at % PAGE) for at in range(start, start + count))
        return np.array(places, np.uint32).reshape(-1, 2)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What kernels read of it, by the names of a plan's inputs."""
        return {**self._arrays}

    @cached_property
    def _arrays(self) -> dict[str, npt.NDArray[Any]]:  # several parts of a model read them
        segments, row_segment = [], []
        for number, (first, count, slot, start, _, state, _, kept) in enumerate(self.segments):
            words = (first, count, start, *(state or (slot, slot)), len(kept), 0, 0, *kept)
            segments.append(words + (0,) * (SEGMENT_WORDS - len(words)))
            row_segment += [number] * count
        windows = {window for segment in self.segments for window, _ in segment.windows}
        return {
            "ids": self.ids,  # [T]
            "segments": np.array(segments, np.uint32).reshape(-1, SEGMENT_WORDS),
            "row_segment": np.array(row_segment, np.uint32),  # [T]
            "output_rows": np.array(self.outputs, np.uint32),  # [R]
            **({} if self.adapters is None else {"adapters": self.adapters}),
            **{of_window("pages", window): self._tables(window) for window in (0, *windows)},  # [S, P]
            **{of_window("places", window): self.places(window) for window in (0, *windows)},  # [T, 2]
        }

    def _tables(self, window: int) -> npt.NDArray[np.uint32]:
        """The pages of each sequence, zeros beyond its own."""
        every = [segment.table(window) for segment in self.segments]
        tables = np.zeros((len(every), max(map(len, every), default=0)), np.uint32)
        for row, pages in zip(tables, every, strict=True):
            row[: len(pages)] = pages
        return tables


def of_window(name: str, window: int) -> str:
    """What a plan calls an input that belongs to caches of one window."""
    return f"{name}.{window}" if window else name
