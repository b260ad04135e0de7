"""Assigns slots to waiting sequences, and takes slots and pages back."""

import bisect
import itertools
from collections.abc import Iterator

import numpy as np

from ..ops.sampling import DRAW_WORDS, draw_words
from ..ops.vocabulary import PAGE
from .cache.store import SequenceStore
from .sequence import TokenSequence
from .step_result import is_adjusted
from .stored_prefixes import StoredPrefixes


class Slots:
    """All sequences that have not ended: waiting, running (with a slot) or parked."""

    def __init__(self, count: int, store: SequenceStore, prefixes: StoredPrefixes) -> None:
        self._store = store
        self._prefixes = prefixes
        self._ids = itertools.count(1)
        self.sequences: dict[int, TokenSequence] = {}  # all that have not ended
        self.waiting: list[TokenSequence] = []  # for a slot, in order of arrival
        self.parked: set[TokenSequence] = set()  # lost their slot while paused
        self.running: list[TokenSequence] = []  # in the order in which they got their slots
        self.free = list(range(count))
        self.draws = np.zeros((count, DRAW_WORDS), np.uint32)  # sampling parameters of each slot
        self.adjusted = [False] * count  # whether its logits are adjusted before sampling
        self.updated: dict[TokenSequence, None] = {}  # have updates to deliver
        self.evaluating = False  # a text is partly evaluated and holds pages
        self.preempted = False  # a sequence was preempted, so no new one starts until another has ended

    def add(self, sequence: TokenSequence) -> None:
        """Queues a new sequence for a slot."""
        sequence.id = next(self._ids)
        self.sequences[sequence.id] = sequence
        self.waiting.append(sequence)

    def resume(self, sequence: TokenSequence) -> None:
        """Resumes a paused sequence; if it was parked, queues it for a slot."""
        sequence.paused = False
        if sequence in self.parked:
            self.parked.remove(sequence)
            self.wait(sequence)

    # ---------------------------------------------------------------- before a step

    def admit(self) -> Iterator[TokenSequence]:
        """Yields waiting sequences as they get a free slot, in order. The caller starts each before taking the next."""
        if self.waiting and not self.free:
            self.park()
        if self.preempted and not self.evaluating and all(sequence.paused for sequence in self.running):
            self.preempted = False
        while self.waiting and self.free and not self.preempted and (sequence := self._next()) is not None:
            self.waiting.remove(sequence)
            sequence.slot = self.free.pop(0)
            self.running.append(sequence)
            yield sequence

    def draw(self, sequence: TokenSequence) -> None:
        """Updates the sampling parameters of the sequence's slot."""
        row = sequence.draw()
        self.draws[sequence.slot] = draw_words(row)
        self.adjusted[sequence.slot] = is_adjusted(int(row["flags"]))

    def _next(self) -> TokenSequence | None:
        """The first waiting sequence whose prompt no running sequence is reading.

        The others wait for that prompt's prefix.
        """
        long = [one for one in self.running if one.read_end > PAGE and not one.paused]
        reading = {one.prompt_key: one for one in long if one.fed + 1 < one.read_end}
        for sequence in self.waiting:
            if sequence.in_flight:
                return None
            other = reading.get(sequence.prompt_key) if sequence.length == sequence.prompt else None
            if other is None or not self._prefixes.share(other):
                return sequence
        return None

    def shift(self, keep: int) -> None:
        """Cuts the middle of sequences that have reached the end of the context, and recomputes the rest."""
        for sequence in [one for one in self.running if one.full]:
            sequence.cut_middle(keep)
            self.wait(self.preempt(sequence))

    def free_pages(self) -> bool:
        """Frees pages after a step found too few; False if no sequence can be preempted."""
        if self._prefixes.cache.evict():
            return True
        if len(self.running) < (1 if self.evaluating else 2):
            return False
        if not self.park():
            self.wait(self.preempt(self.running[-1]))
            self.preempted = True
        return True

    def preempt(self, sequence: TokenSequence) -> TokenSequence:
        """Takes slot and pages from a sequence; it will be recomputed from its tokens."""
        self.running.remove(sequence)
        self._release(sequence)
        sequence.fed = 0
        return sequence

    def park(self) -> bool:
        """Takes slot and pages from a paused sequence; False if there is none."""
        for sequence in self.running:
            if sequence.paused and not sequence.finish_reason:
                self.parked.add(self.preempt(sequence))
                return True
        return False

    def wait(self, sequence: TokenSequence) -> None:
        """Queues a sequence for a slot, at the position given by its arrival."""
        bisect.insort(self.waiting, sequence, key=lambda waiting: waiting.id)

    # ---------------------------------------------------------------- at the end

    def end(self, id: int, reason: str) -> None:
        """Ends a sequence. Does nothing if it has ended."""
        sequence = self.sequences.get(id)
        if sequence is None:
            return
        sequence.end(reason)
        if sequence in self.parked:
            self.parked.remove(sequence)
            self._forget(sequence)
        elif sequence.slot < 0:
            self.waiting.remove(sequence)
            self._forget(sequence)
        self.release_finished()

    def release_finished(self) -> None:
        """Frees the pages and slots of sequences that have ended."""
        finished = [sequence for sequence in self.running if sequence.finish_reason]
        if not finished:
            return
        self.preempted = False
        self.running = [sequence for sequence in self.running if not sequence.finish_reason]
        for sequence in finished:
            self._prefixes.keep_ended(sequence)
            self._release(sequence)
            self._forget(sequence)

    def _release(self, sequence: TokenSequence) -> None:
        self._store.forget(sequence.slot)
        self.free.append(sequence.slot)
        sequence.slot = -1
        sequence.draft = []

    def _forget(self, sequence: TokenSequence) -> None:
        """Removes an ended sequence; its last update is still to be delivered."""
        self.updated[sequence] = None
        del self.sequences[sequence.id]
