"""The batch of one step: flat rows of token ids, and which of them belong together. Knows no model and no text."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .vocabulary import PAGE


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of a step that are the next tokens of one sequence."""

    first: int  # row
    count: int  # of rows, at least 1
    slot: int  # the sequence's number; where nobody places it, its state lies there
    start: int  # position of the first row in the sequence; at 0 the state starts from zeros, whatever `source` holds
    pages: tuple[int, ...] = ()  # that hold positions 0 .. of the sequence, for models that attend
    state: tuple[int, int] | None = None  # for recurrent models: the state that is read, and the one that is written

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

    @classmethod
    def of(
        cls,
        sequences: Iterable[tuple[int, int, Sequence[int]]],
        *,
        every: bool = False,
        wanted: Sequence[bool] | None = None,
    ) -> "Batch":
        """The next tokens of sequences, each (slot, start, ids).

        It asks for the last row of each, or of those that are `wanted`, or for every row.
        """
        ids: list[int] = []
        segments = []
        for slot, start, tokens in sequences:
            segments.append(Segment(len(ids), len(tokens), slot, start))
            ids.extend(tokens)
        last = [segment.first + segment.count - 1 for segment in segments]
        outputs = range(len(ids)) if every else last if wanted is None else itertools.compress(last, wanted)
        return cls(np.array(ids, np.uint32), tuple(segments), tuple(outputs))

    @property
    def rows(self) -> int:
        """T"""
        return len(self.ids)

    @property
    def single(self) -> bool:
        """Whether every sequence has one row, as in decode."""
        return self.rows == len(self.segments)

    def paged(self, tables: Mapping[int, Sequence[int]]) -> "Batch":
        """The same with the pages of each slot."""
        segments = tuple(replace(segment, pages=tuple(tables[segment.slot])) for segment in self.segments)
        return replace(self, segments=segments)

    def stateful(self, states: Mapping[int, tuple[int, int]]) -> "Batch":
        """The same with the states that each slot reads and writes."""
        segments = tuple(replace(segment, state=states[segment.slot]) for segment in self.segments)
        return replace(self, segments=segments)

    def pages(self) -> npt.NDArray[np.uint32]:
        """The pages of each sequence, beyond its last zeros. [S, P]"""
        most = max((len(segment.pages) for segment in self.segments), default=0)
        pages = np.zeros((len(self.segments), most), np.uint32)
        for row, segment in zip(pages, self.segments, strict=True):
            row[: len(segment.pages)] = segment.pages
        return pages

    def places(self) -> npt.NDArray[np.uint32]:
        """The position of each row in its sequence, and the row of all pages that holds it. [T, 2]"""
        return self.arrays()["places"]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What kernels read of it, by the names of a plan's inputs."""
        rows = [(s.first, s.count, s.start, s.source, s.target) for s in self.segments]
        segments = np.array(rows, np.uint32).reshape(-1, 5)
        row_segment = np.repeat(np.arange(len(rows), dtype=np.uint32), segments[:, 1])
        pages = self.pages()
        return {
            "ids": self.ids,  # [T]
            "segments": segments,  # [S, 5]
            "row_segment": row_segment,  # [T]
            "output_rows": np.array(self.outputs, np.uint32),  # [R]
            "pages": pages,  # [S, P]
            "places": _places(segments, row_segment, pages),  # [T, 2]
        }


def _places(
    segments: npt.NDArray[np.uint32], row_segment: npt.NDArray[np.uint32], pages: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Position and place of each row; without pages there are no places."""
    if not pages.size:
        return np.zeros((0, 2), np.uint32)
    mine = segments[row_segment]
    positions = np.arange(len(mine), dtype=np.uint32) - mine[:, 0] + mine[:, 2]
    page, row = np.divmod(positions, np.uint32(PAGE))
    return np.stack([positions, pages[row_segment, page] * np.uint32(PAGE) + row], axis=1)
