"""Evaluates whole texts: logits of every position, or inputs of the head. Generates nothing."""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import BadNumbers, CacheFull
from ..models.registry import reads_whole_texts, refuse_encoder, refuse_source
from ..ops.batch import Batch
from .runner import Runner
from .slots import Slots
from .stored_prefixes import StoredPrefixes


def checked(rows: npt.NDArray[np.float32], *, hidden: bool) -> npt.NDArray[np.float32]:
    """Returns logits or hidden states as they leave the engine. Raises BadNumbers if any is NaN or infinite.

    A logit may be -inf: its token is impossible.
    """
    most, least = (rows.max(), rows.min()) if len(rows) else (0.0, 0.0)  # NaN if any is
    if not math.isfinite(most) or (hidden and not math.isfinite(least)):
        raise BadNumbers.of("hidden states" if hidden else "logits")
    return rows


class Evaluator:
    """Evaluates texts in free slots of an engine, between the steps of other requests."""

    def __init__(self, runner: Runner, slots: Slots, stored: StoredPrefixes) -> None:
        self._runner = runner
        self._slots = slots
        self._stored = stored

    def evaluate(
        self, ids: Sequence[int], *, chunk_size: int | None = None, hidden: bool = False
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Yields the logits of every position in chunks, [rows, V], or the inputs of the head, [rows, D].

        Other requests may have steps between two chunks, and are preempted if pages are short. While waiting for a
        slot, or for another text, it yields no rows. A caller that stops early must close it.
        """
        if not hidden:
            refuse_encoder(self._runner.model)
            refuse_source(self._runner.model)
        run = self._runner.hidden if hidden else self._runner.step
        size = min(chunk_size or self._runner.chunk_size, self._runner.chunk_size)
        if reads_whole_texts(self._runner.model):
            size = self._runner.chunk_size  # one step must hold the whole text
        slots, stored = self._slots, self._stored
        while slots.evaluating or not slots.free:
            yield np.zeros((0, 1), np.float32)
        slot, slots.evaluating = slots.free.pop(), True
        try:
            if stored.initial is not None:
                self._runner.store.adopt(slot, *stored.initial)
            for at in range(0, len(ids), size):
                batch = Batch.of([(slot, len(stored.begun) + at, ids[at : at + size])], every=True)
                while True:
                    try:
                        rows = run(batch)
                        break
                    except CacheFull:
                        if not slots.free_pages():
                            raise
                yield checked(rows, hidden=hidden)
        finally:
            self._runner.store.forget(slot)
            slots.free.append(slot)
            slots.evaluating = slots.preempted = False

    def hidden(self, texts: Sequence[Sequence[int]]) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yields inputs of the head: the index of a text, and rows of it, [rows, D].

        Texts that fit in one step together share it; longer ones are evaluated as in `evaluate`.
        """
        at = 0
        while at < len(texts):
            pieces = self._together(texts[at : at + self._fitting(texts[at:])])
            yield from enumerate(pieces, at)
            at += len(pieces)
            if not pieces:
                yield from ((at, rows) for rows in self.evaluate(texts[at], hidden=True))
                at += 1

    def _fitting(self, texts: Sequence[Sequence[int]]) -> int:
        """Number of next texts that fit in a step."""
        ends = itertools.accumulate(map(len, texts[: len(self._slots.free)]))
        return sum(end <= self._runner.chunk_size for end in ends)

    def _together(self, texts: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        """Evaluates these texts in one step and returns their rows; empty if there are too few pages."""
        if len(texts) < 2:
            return []
        stored, slots = self._stored, [self._slots.free.pop() for _ in texts]
        try:
            if stored.initial is not None:
                for slot in slots:
                    self._runner.store.adopt(slot, *stored.initial)
            start = len(stored.begun)
            rows = self._runner.hidden(
                Batch.of([(slot, start, ids) for slot, ids in zip(slots, texts, strict=True)], every=True)
            )
        except CacheFull:
            return []
        finally:
            for slot in slots:
                self._runner.store.forget(slot)
            self._slots.free += slots
        return np.split(checked(rows, hidden=True), list(itertools.accumulate(map(len, texts)))[:-1])
