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

    def take(self) -> None:
        """Waits, and gives each sequence the tokens of its draft."""
        found: dict[TokenSequence, list[int]] = {}
        for step, sequences in self.steps:
            for sequence, row in zip(sequences, step.wait().rows, strict=True):
                found.setdefault(sequence, []).append(row.token)
        for sequence, tokens in found.items():
            sequence.draft = tokens


class HeadDrafts(Proposer):
    """Drafts for several sequences at once; each step drafts one token per sequence."""

    queued = True

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def offer(self, sequence: TokenSequence, most: int) -> Offer | None:  # noqa: ARG002  it always has one
        return Offer(HEAD)

    def submit(self, chunks: Sequence[ScheduledChunk], placements: Sequence[Placement]) -> QueuedDrafts:
        """Submits the steps that draft for these chunks. Their drafts become references to what these steps sample."""
        steps: list[tuple[PendingStep, list[TokenSequence]]] = []
        for number in range(max(chunk.samples for chunk in chunks) - 1):
            going = [pair for pair in zip(chunks, placements, strict=True) if pair[0].samples - 1 > number]
            steps.append((self.step(going, number), [chunk.sequence for chunk, _ in going]))
        for chunk in chunks:
            places = [self._runner.draft_place(chunk.slot, number) for number in range(chunk.samples - 1)]
            chunk.sequence.draft = [FROM_SLOT | place for place in places]
        return QueuedDrafts(steps)

    def step(self, going: Sequence[tuple[ScheduledChunk, Placement]], number: int) -> PendingStep:
        """The step that drafts token `number`, from the last known token of each sequence or the previous draft."""
        rows, placements, draws = [], [], []
        for chunk, (pages, _, windows, _) in going:
            slot, sequence = chunk.slot, chunk.sequence
            place = self._runner.draft_place
            token = FROM_SLOT | place(slot, number - 1) if number else sequence.ids[-1]
            rows.append((slot, len(sequence.ids) - 1 + number, [token]))
            placements.append((pages, None, windows, ()))
            draws.append(draft_row(sequence, place(slot, number), number))
        batch = Batch.of(rows, placements=placements)
        adapters = self._runner.adapters
        if any(chunk.sequence.family for chunk, _ in going):
            each = [adapters.scales() if one.sequence.adapters is None else one.sequence.adapters for one, _ in going]
            batch = replace(batch, adapters=np.array(each))
        return self._runner.draft(batch, SamplingInputs.of(np.array(draws, DRAW)))
