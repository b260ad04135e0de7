"""Speculative decoding: tokens are drafted, and one step verifies them all.

The model samples every row of such a step as it would have sampled it alone, by the same seed and number of the draw.
Rows are right as long as the draft has the sampled tokens. So the answer is that without drafts, at any temperature.
"""

from collections.abc import Sequence

from ..sequence import TokenSequence
from .draft_model import DraftModel
from .drafting import Drafting
from .gate import SpeculationGate


class Speculator:
    """Drafts for the sequences of an engine: by a model, or by looking up what followed before."""

    def __init__(self, most: int, model: DraftModel | None, *, lookup: bool) -> None:
        self.most = most  # tokens of a draft
        self.gate = SpeculationGate()
        self._model = model
        self._lookup = lookup

    def drafting_for(self, sequence: TokenSequence) -> Drafting | None:
        """What is known of the drafts of a new sequence; None where it wants none. Any thread may call it."""
        asked = sequence.request.params.draft_tokens
        most = self.most if asked is None else min(asked, self.most)
        if not most:
            return None
        drafting = Drafting(most)
        if self._lookup:
            drafting.index.extend(sequence.ids)
        return drafting

    def draft(self, sequences: Sequence[TokenSequence], rows: int) -> None:
        """Gives those that decode a draft each. A step has so many rows."""
        ready = [sequence for sequence in sequences if sequence.drafting and can_draft(sequence)]
        if not ready:
            return
        most = (rows - len(sequences)) // len(ready)
        wanted: list[tuple[TokenSequence, int]] = []
        for sequence in ready:
            assert sequence.drafting is not None
            width = min(most, sequence.room)
            width = min(width, sequence.drafting.width()) if width > 0 else 0
            if width > 0 and self._lookup:
                sequence.draft = sequence.drafting.index.draft(sequence.ids, width)
            if width > 0 and not sequence.draft:
                wanted.append((sequence, width))
        if self._model is not None and wanted:
            for sequence, draft in self._model.draft(wanted).items():
                size = sequence.sampler.vocab_size
                known = next((i for i, token in enumerate(draft) if token >= size), len(draft))
                sequence.draft = draft[:known]

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
