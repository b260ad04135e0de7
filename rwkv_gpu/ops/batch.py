"""The batch of one step: flat rows of token ids, and which of them belong together. Knows no model and no text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of a step that are the next tokens of one sequence."""

    first: int  # row
    count: int  # of rows, at least 1
    slot: int  # where the sequence's state lies
    start: int  # position of the first row in the sequence; at 0 the state starts from zeros, whatever the slot holds


@dataclass(frozen=True)
class Batch:
    """T rows: each is in one segment, the segments lie in order, and no slot is used twice."""

    ids: npt.NDArray[Any]  # uint32 [T]
    segments: tuple[Segment, ...]
    outputs: tuple[int, ...]  # the rows whose logits are asked for

    @classmethod
    def of(cls, sequences: Iterable[tuple[int, int, Sequence[int]]], *, every: bool = False) -> "Batch":
        """The next tokens of sequences, each (slot, start, ids); asks for the last row of each, or for every row."""
        ids: list[int] = []
        segments = []
        for slot, start, tokens in sequences:
            segments.append(Segment(len(ids), len(tokens), slot, start))
            ids.extend(tokens)
        outputs = range(len(ids)) if every else (segment.first + segment.count - 1 for segment in segments)
        return cls(np.array(ids, np.uint32), tuple(segments), tuple(outputs))

    @property
    def rows(self) -> int:
        """T"""
        return len(self.ids)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What kernels read of it, by the names of a plan's inputs."""
        rows = [(segment.first, segment.count, segment.slot, segment.start) for segment in self.segments]
        counts = [segment.count for segment in self.segments]
        return {
            "ids": self.ids,  # [T]
            "segments": np.array(rows, np.uint32).reshape(-1, 4),  # [S, 4]
            "row_segment": np.repeat(np.arange(len(rows), dtype=np.uint32), counts),  # [T]
            "output_rows": np.array(self.outputs, np.uint32),  # [R]
        }
