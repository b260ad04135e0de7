"""The batch of one step: a flat list of rows, each with a token id, grouped into segments. Knows no model or text."""

import itertools
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..gpu.plan import LENGTHS
from .vocabulary import PAGE, Cache

Pages = tuple[int, ...]
Windows = tuple[tuple[int, Pages], ...]
InputArrays = Mapping[str, npt.NDArray[np.float32]]
Placement = tuple[Pages, tuple[int, int] | None, Windows, Pages]  # fields of `Segment`, from `pages` on

SEGMENT_WORDS = 16  # words of a `Segment` in `shaders/lib/step.wgsl`
MAX_KEPT = 8  # maximum number of intermediate states that a segment can save
NONE_KEPT = (0,) * MAX_KEPT
Made = TypeVar("Made", bound=Hashable)


class Segment(NamedTuple):
    """Consecutive rows of a step that are the next tokens of one sequence."""

    first: int  # row
    count: int  # type: ignore[assignment]  # number of rows, at least 1; hides the method of tuples
    slot: int  # the sequence's number; also the place of its state, unless `state` is given
    start: int  # position of the first row in the sequence; at 0 the state starts from zeros, whatever `source` holds
    pages: tuple[int, ...] = ()  # pages with positions 0, 1, .. of the sequence, for models with attention
    state: tuple[int, int] | None = None  # numbers of the state read and the state written, for recurrent models

    # For caches that keep only a window: its size, and pages by position; dropped pages are replaced by the first kept.
    windows: Windows = ()
    kept: Pages = ()  # intermediate states that are saved: none, or one after each row except the last
    # The position that the host assumes for the first row of the sequence, if only the device knows it.
    assumed: int | None = None

    @property
    def unverified(self) -> int:
        """Drafted tokens before it that the host does not know to be right: none, if the host made the batch."""
        return 0

    @property
    def end(self) -> int:
        """The length of the sequence after the step."""
        return self.start + self.count

    @property
    def rows(self) -> slice:
        """Its range of rows in the step."""
        return slice(self.first, self.first + self.count)

    @property
    def keeps(self) -> bool:
        """True if a state is saved after each of its rows."""
        return bool(self.kept)

    @property
    def positions(self) -> range:
        """The positions of its rows in the sequence."""
        return range(self.start, self.end)

    def table(self, window: int) -> Pages:
        """The pages of a cache with this window; those of all positions if the window has no pages of its own."""
        for size, pages in self.windows:
            if size == window:
                return pages
        return self.pages

    def past(self, window: int = 0) -> npt.NDArray[np.int64]:
        """The row, counted over all pages, of each of its positions."""
        rows = np.array(self.table(window), np.int64)[:, None] * PAGE + np.arange(PAGE)
        return rows.reshape(-1)[: self.end]

    def entries(self, cache: Cache) -> npt.NDArray[np.int64]:
        """The row, counted over all pages, of each complete entry of a cache."""
        last = np.arange(self.end // cache.stride) * cache.stride + cache.stride - 1
        pages = np.array(self.table(cache.window), np.int64)[last // PAGE]
        return pages * (PAGE // cache.step) + last % PAGE // cache.stride

    @property
    def steps(self) -> "Sequence[Segment]":
        """The segments for ops with a state: itself, or one per row if intermediate states are saved."""
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
        """The state that it writes, which may be the same."""
        return self.slot if self.state is None else self.state[1]


@dataclass(frozen=True)
class Batch:
    """T rows in segments, which are contiguous and in order; no slot occurs twice."""

    ids: npt.NDArray[Any]  # uint32 [T]
    segments: tuple[Segment, ...]
    outputs: tuple[int, ...]  # the rows whose logits are needed
    adapters: npt.NDArray[np.float32] | None = None  # weight of each adapter column for each row, [T, R]
    extra_inputs: InputArrays = field(default_factory=dict)  # further inputs of the step by name, [T, n] each
    # Whether the device counts its right drafts, and corrects positions by the count of the step before
    follows: bool = False
    rows: int = field(init=False)  # T
    single: bool = field(init=False)  # whether every sequence has one row, as in decode

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", len(self.ids))
        object.__setattr__(self, "single", len(self.ids) == len(self.segments))

    @classmethod
    def of(
        cls,
        sequences: Iterable[tuple[int, int, Sequence[int]]],
        *,
        every: bool = False,
        wanted: Sequence[int] | None = None,
        placements: Sequence[Placement] | None = None,
    ) -> "Batch":
        """A batch of the next tokens of sequences, each (slot, start, ids), with their placements if known.

        Its outputs are the last row of each sequence, the `wanted` number of last rows of each, or every row.
        """
        ids: list[int] = []
        segments: list[Segment] = []
        outputs: list[int] = []
        each: Iterable[int] = itertools.repeat(1) if wanted is None else wanted
        places: Iterable[Placement | tuple[()]] = itertools.repeat(()) if placements is None else placements
        for (slot, start, tokens), count, placement in zip(sequences, each, places, strict=False):
            first, rows = len(ids), len(tokens)
            segments.append(Segment(first, rows, slot, start, *placement))
            ids.extend(tokens)  # += would add an array
            outputs += range(first if every else first + rows - count, first + rows)
        return cls(words(ids), tuple(segments), tuple(outputs))

    @property
    def steps(self) -> "Iterator[Segment]":
        """The segments for ops with a state, in order: see `Segment.steps`."""
        return itertools.chain.from_iterable(segment.steps for segment in self.segments)

    def split_rows(self) -> "Batch":
        """The batch with each row as a segment of its own in the same pages; for models without a state.

        A row then finds its pages by its own number. It sees the keys of rows before it once they are written.
        """
        rows = [
            segment._replace(first=segment.first + i, count=1, start=segment.start + i)
            for segment in self.segments
            for i in range(segment.count)
        ]
        return replace(self, segments=tuple(rows))

    def following(self, starts: Mapping[int, int]) -> "Batch":
        """The batch as a step whose right drafts are counted on the device.

        `starts` has the slots whose step before is not known to the host, with the position that it assumes for the
        first row: as if all drafts of that step were right.
        """
        segments = [one._replace(assumed=starts.get(one.slot)) for one in self.segments]
        return replace(self, segments=tuple(segments), follows=True)

    def placed(
        self, pages: Mapping[int, Sequence[int]] | None = None, states: Mapping[int, tuple[int, int]] | None = None
    ) -> "Batch":
        """The same batch with the pages of each slot, and the states that it reads and writes."""
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
                s.assumed,
            )
            for s in self.segments
        )
        return replace(self, segments=tuple(segments))

    def places(self, window: int = 0) -> npt.NDArray[np.uint32]:
        """The position of each row in its sequence, and its row counted over all pages. [T, 2]"""
        places: list[int] = []
        for segment in self.segments:
            count, start, pages = segment.count, segment.start, segment.table(window)
            if count == 1 and pages:
                places += start, pages[start // PAGE] * PAGE + start % PAGE
            elif pages:
                for at in range(start, start + count):
                    places += at, pages[at // PAGE] * PAGE + at % PAGE
        return words(places).reshape(-1, 2)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that kernels read, by the names of a plan's inputs."""
        return {**BatchArrays().of(self)}


class BatchArrays:
    """Makes the arrays of successive batches that kernels read, by the names of a plan's inputs.

    An array with the same sources as in the previous batch is reused, and is read-only. In successive decode steps,
    only ids, positions and states are new.
    """

    def __init__(self) -> None:
        self._batch: Batch | None = None
        self._arrays: Mapping[str, npt.NDArray[Any]] = {}
        self._made: dict[str, tuple[Hashable, npt.NDArray[np.uint32]]] = {}  # each array with its source data

    def of(self, batch: Batch) -> Mapping[str, npt.NDArray[Any]]:
        """The arrays of a batch; several parts of a model may call this."""
        if batch is self._batch:
            return self._arrays
        segments = batch.segments
        arrays = {
            "ids": batch.ids,  # [T]
            "segments": _segment_words(segments),
            "row_segment": self._same("row_segment", tuple([s.count for s in segments]), _numbers),  # [T]
            "output_rows": self._same("output_rows", batch.outputs, words),  # [R]
            "slots": self._same("slots", tuple([s.slot for s in segments]), words),  # [S]
            LENGTHS: _lengths(segments),
        }
        if batch.adapters is not None:
            arrays["adapters"] = batch.adapters
        arrays |= batch.extra_inputs
        windows = segments[0].windows if segments else ()  # all segments have the same windows
        for window in (0, *[window for window, _ in windows]):
            name = of_window("pages", window)
            arrays[name] = self._same(name, tuple([s.table(window) for s in segments]), _tables)  # [S, P]
            arrays[of_window("places", window)] = batch.places(window)  # [T, 2]
        self._batch, self._arrays = batch, arrays
        return arrays

    def _same(self, name: str, made_of: Made, make: Callable[[Made], npt.NDArray[np.uint32]]) -> npt.NDArray[np.uint32]:
        """The previous array of that name if its source is unchanged, else a new one."""
        before = self._made.get(name)
        if before is not None and before[0] == made_of:
            return before[1]
        made = make(made_of)
        made.flags.writeable = False
        self._made[name] = made_of, made
        return made


def words(numbers: Iterable[int]) -> npt.NDArray[np.uint32]:
    """The numbers as 32-bit words; for many numbers, several times faster than `np.array`."""
    return np.frombuffer(array("I", numbers), np.uint32)


def _segment_words(segments: Sequence[Segment]) -> npt.NDArray[np.uint32]:
    """The segments in the layout of `shaders/lib/step.wgsl`, with the assumed start plus 1, and the slot. [S, 16]"""
    all_words: list[int] = []
    for first, count, slot, start, _, state, _, kept, assumed in segments:
        source, target = state or (slot, slot)
        all_words += first, count, start, source, target, len(kept), 0 if assumed is None else assumed + 1, slot
        all_words += kept
        all_words += NONE_KEPT[len(kept) :]
    return words(all_words).reshape(-1, SEGMENT_WORDS)


def _lengths(segments: Sequence[Segment]) -> npt.NDArray[np.uint32]:
    """The total number of positions of all sequences, and that of the longest sequence. [2]"""
    total = longest = 0
    for segment in segments:
        end = segment.start + segment.count
        total += end
        longest = max(longest, end)
    return words((total, longest))


def _numbers(counts: Sequence[int]) -> npt.NDArray[np.uint32]:
    """The segment number of each row, given the number of rows of each segment."""
    return np.repeat(np.arange(len(counts), dtype=np.uint32), counts)


def _tables(tables: Sequence[Pages]) -> npt.NDArray[np.uint32]:
    """The pages of each sequence, zeros beyond its own. [S, P]"""
    rows = np.zeros((len(tables), max(map(len, tables), default=0)), np.uint32)
    for row, pages in zip(rows, tables, strict=True):
        row[: len(pages)] = pages
    return rows


def of_window(name: str, window: int) -> str:
    """The name of a plan's input for caches of one window."""
    return f"{name}.{window}" if window else name
