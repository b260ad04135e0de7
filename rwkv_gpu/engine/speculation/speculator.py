"""Speculative decoding: tokens are drafted, and one step verifies them all.

The model samples every row of such a step as it would have sampled it alone, by the same seed and number of the draw.
Rows are right as long as the draft has the sampled tokens. So the answer is that without drafts, at any temperature.
"""

from collections.abc import Sequence

from ..sequence import TokenSequence
from .acceptance import MODEL, Acceptance, kind_of
from .costs import StepCosts
from .draft_model import DraftModel
from .drafting import Drafting
from .gate import SpeculationGate
from .lookup import NgramIndex
from .widths import best_widths


class Speculator:
    """Drafts for the sequences of an engine: by a model, or by looking up what followed before."""

    def __init__(self, most: int, model: DraftModel | None, *, lookup: bool, always: bool = False) -> None:
        """With `always` drafts are as long as they can be, whatever they cost."""
        self.most = most  # tokens of a draft
        self.gate = SpeculationGate(always=always, watches=model is None)
        self._model = model
        self._lookup = lookup
        self._acceptance = Acceptance()

    def drafting_for(self, sequence: TokenSequence) -> Drafting | None:
        """What is known of the drafts of a new sequence; None where it wants none. Any thread may call it."""
        asked = sequence.request.params.draft_tokens
        most = self.most if asked is None else min(asked, self.most)
        if not most:
            return None
        drafting = Drafting(most, self._acceptance)
        if self._lookup:
            drafting.index = NgramIndex()
            drafting.index.extend(sequence.ids)
        return drafting

    def draft(self, sequences: Sequence[TokenSequence], rows: int, costs: StepCosts) -> bool:
        """Gives those that decode a draft each, as long as it pays. A step has so many rows.

        Whether the draft model still reads a text: such a step says nothing of those to come.
        """
        ready = [sequence for sequence in sequences if can_draft(sequence)]
        found: list[tuple[TokenSequence, int]] = []  # who may have a draft, of how many tokens
        for sequence in ready:
            drafting = sequence.drafting
            assert drafting is not None
            most, run = min(drafting.most, sequence.room), 0
            if drafting.index is not None and most > 0:
                sequence.draft, run = drafting.index.find(sequence.ids, most)
            drafting.kind = kind_of(run) if sequence.draft else MODEL
            if most > 0 and (sequence.draft or self._model is not None):
                found.append((sequence, most))
        wanted: list[tuple[TokenSequence, int]] = []
        for (sequence, _), width in zip(found, self._widths(found, sequences, rows, costs), strict=True):
            if width and not sequence.draft:
                wanted.append((sequence, width))
            del sequence.draft[width:]
        reads = False
        if self._model is not None and wanted:
            for sequence, draft in self._model.draft(wanted).items():
                reads |= not draft
                size = sequence.sampler.vocab_size
                known = next((i for i, token in enumerate(draft) if token >= size), len(draft))
                sequence.draft = draft[:known]
        return reads

    def planned(
        self, sequences: Sequence[TokenSequence], costs: StepCosts, chance: float, most: int
    ) -> tuple[int, float]:
        """How long a draft would be beside such sequences, and what tokens the step would cost this one."""
        count = len(sequences)
        [width] = best_widths([(chance, most)], count, count + most, costs.of, costs.rate(count))
        alone = costs.relative(count, count)
        return width, alone + count * (costs.relative(count + width, count) - alone)

    def _widths(
        self,
        found: Sequence[tuple[TokenSequence, int]],
        sequences: Sequence[TokenSequence],
        rows: int,
        costs: StepCosts,
    ) -> list[int]:
        if self.gate.always:
            each = (rows - len(sequences)) // max(1, len(found))
            return [max(0, min(each, most)) for _, most in found]
        chances = [(one.drafting.chance(one.drafting.kind), most) for one, most in found if one.drafting]
        return best_widths(chances, len(sequences), rows, costs.of, costs.rate(len(sequences)))

    def release(self, sequence: TokenSequence) -> None:
        """A sequence has ended, or begins anew."""
        sequence.draft = []
        if self._model is not None:
            self._model.release(sequence)

    def close(self) -> None:
        """Gives back all memory."""
        if self._model is not None:
            self._model.close()


def can_draft(sequence: TokenSequence) -> bool:
    """Whether all of its tokens are known and only the last is yet to be fed."""
    drafting = sequence.drafting
    decodes = sequence.prompt < sequence.length and len(sequence.ids) == sequence.fed + 1
    return drafting is not None and drafting.on and decodes and not sequence.in_flight
