"""Drafts by the head of the model: its steps are queued before the step that verifies them, which reads their tokens.

So the host waits once for all of them. The head reads the rows that the model's steps leave in each slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...ops.batch import Batch, Placement
from ...ops.sampling import DRAW, FROM_SLOT
from ..runner import Runner
from ..scheduler import ScheduledChunk
from ..sequence import TokenSequence
from ..step_result import PendingStep, SamplingInputs
from .acceptance import HEAD
from .draft_model import draft_row
from .proposer import Offer, Proposer


@dataclass(frozen=True)
class QueuedDrafts:
    """Drafts that the device has not computed yet: each step, and the sequences of its rows."""

    steps: Sequence[tuple[PendingStep, Sequence[TokenSequence]]]

    def take(self) -> dict[TokenSequence, list[int]]:
        """Waits, and returns the draft of each sequence."""
        found: dict[TokenSequence, list[int]] = {}
        for step, sequences in self.steps:
            for sequence, row in zip(sequences, step.wait().rows, strict=True):
                found.setdefault(sequence, []).append(row.token)
        return found


class HeadDrafts(Proposer):
    """Drafts for several sequences at once; a step drafts one token per sequence, or all if the head uses masks."""

    queued = True

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        head = runner.head
        assert head is not None, "it drafts"
        self._mask, self._extra_inputs = head.mask, head.extra_inputs

    def offer(self, sequence: TokenSequence, most: int) -> Offer | None:  # noqa: ARG002  it always has one
        return Offer(HEAD)

    def submit(self, chunks: Sequence[ScheduledChunk], placements: Sequence[Placement]) -> QueuedDrafts:
        """Submits the steps that draft for these chunks. Their drafts become references to what these steps sample."""
        steps: list[tuple[PendingStep, list[TokenSequence]]] = []
        for number in range(max(chunk.samples for chunk in chunks) - 1 if self._mask is None else 1):
            going = [pair for pair in zip(chunks, placements, strict=True) if pair[0].samples - 1 > number]
            drafted = [chunk.sequence for chunk, _ in going for _ in self.drafted(chunk, number)]
            steps.append((self.step(going, number), drafted))
        for chunk in chunks:
            places = [self._runner.draft_place(chunk.slot, number) for number in range(chunk.samples - 1)]
            chunk.sequence.draft = [FROM_SLOT | place for place in places]
        return QueuedDrafts(steps)

    def drafted(self, chunk: ScheduledChunk, number: int) -> Sequence[int]:
        """The numbers of the tokens that step `number` drafts for a chunk."""
        return (number,) if self._mask is None else range(chunk.samples - 1)

    def step(self, going: Sequence[tuple[ScheduledChunk, Placement]], number: int) -> PendingStep:
        """Step `number` of the draft, from the last known token of each sequence or the previous draft."""
        rows, placements, draws = [], [], []
        for chunk, (pages, _, windows, _) in going:
            slot, sequence = chunk.slot, chunk.sequence
            place, drafted = self._runner.draft_place, self.drafted(chunk, number)
            start = chunk.start
            token = FROM_SLOT | place(slot, number - 1) if number else sequence.rows(start, start + 1)[0]
            masks = [] if self._mask is None else [self._mask] * len(drafted)
            rows.append((slot, start + number if self._extra_inputs is None else start - 1, [token, *masks]))
            placements.append((pages, None, windows, ()))
            draws += [draft_row(sequence, place(slot, one), one) for one in drafted]
        batch = Batch.of(rows, wanted=[len(self.drafted(one, number)) for one, _ in going], placements=placements)
        if self._runner.follows:
            batch = batch.following({chunk.slot: chunk.start for chunk, _ in going if chunk.unverified})
        if self._extra_inputs is not None:
            batch = replace(batch, extra_inputs=self._extra_inputs([start + 1 for _, start, _ in rows]))
        adapters = self._runner.adapters
        if any(chunk.sequence.family for chunk, _ in going):
            each = [adapters.scales() if one.sequence.adapters is None else one.sequence.adapters for one, _ in going]
            batch = replace(batch, adapters=np.repeat(np.array(each), [len(ids) for _, _, ids in rows], axis=0))
        return self._runner.draft(batch, SamplingInputs.of(np.array(draws, DRAW)), number)
