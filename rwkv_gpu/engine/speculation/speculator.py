"""Speculative decoding: tokens are drafted, and one step verifies them all.

The model samples every row of such a step as it would have sampled it alone, by the same seed and number of the draw.
Rows are right as long as the draft has the sampled tokens. So the answer is that without drafts, at any temperature.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..sequence import TokenSequence
from .acceptance import MODEL, SURE, Acceptance, kind_of
from .costs import StepCosts
from .drafting import Drafting
from .gate import SpeculationGate
from .lookup import NgramIndex
from .widths import Candidate, best_widths

# Chances that a trial supposes, one after the other, until some draft pays: what is known may be wrong by now.
HOPES = 0.0, 0.85, 0.9, 0.95, SURE


class Drafted(NamedTuple):
    """What a draft model did for a step."""

    steps: int = 0
    read: bool = False  # whether it read texts before its steps
    reading: bool = False  # whether one is not read to its end: such a step says nothing of those to come


class Drafter(Protocol):
    """What drafts tokens by steps of its own; see `DraftModel`."""

    steps: int  # that the last drafts took
    read: bool  # whether texts were read before them

    @property
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans and compiling their shaders."""

    def draft(self, wanted: Sequence[tuple[TokenSequence, int]]) -> dict[TokenSequence, list[int]]:
        """Up to so many tokens for each; none where a text must be read first."""

    def release(self, sequence: TokenSequence) -> None:
        """A sequence has ended."""

    def close(self) -> None:
        """Gives back all memory."""


class Speculator:
    """Drafts for the sequences of an engine: by a model, or by looking up what followed before."""

    def __init__(self, most: int, model: Drafter | None, *, lookup: bool, always: bool = False) -> None:
        """With `always` drafts are as long as they can be, whatever they cost."""
        self.most = most  # tokens of a draft
        self.gate = SpeculationGate(always=always, watches=model is None)
        self.model = model
        self._lookup = lookup
        self._acceptance = Acceptance()

    @property
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans of the draft model and compiling their shaders."""
        return 0.0 if self.model is None else self.model.compile_seconds

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

    def pays(self, sequences: int, rows: int, costs: StepCosts) -> bool:
        """Whether drafts for so many sequences could pay, if nearly all tokens were right; lookups cost nothing."""
        if self.model is None or self._lookup:
            return True
        best = Candidate(SURE, self.most, costs.draft_step(sequences))
        without = costs.undrafted(sequences)
        return any(best_widths([best] * sequences, sequences, rows, costs.of, costs.rate(sequences), without))

    def draft(self, sequences: Sequence[TokenSequence], rows: int, costs: StepCosts) -> Drafted:
        """Gives those that decode a draft each, as long as it pays. A step has so many rows."""
        ready = [sequence for sequence in sequences if can_draft(sequence)]
        found: list[tuple[TokenSequence, Candidate]] = []  # who may have a draft
        step = 0.0 if self.model is None else costs.draft_step(len(sequences))
        for sequence in ready:
            drafting = sequence.drafting
            assert drafting is not None
            most, run = min(drafting.most, sequence.room), 0
            if drafting.index is not None and most > 0:
                sequence.draft, run = drafting.index.find(sequence.ids, most)
            drafting.kind = kind_of(run) if sequence.draft else MODEL
            if most > 0 and (sequence.draft or self.model is not None):
                chance = drafting.chance(drafting.kind)
                found.append((sequence, Candidate(chance, most, 0.0 if sequence.draft else step)))
        wanted: list[tuple[TokenSequence, int]] = []
        widths = self._widths([one for _, one in found], len(sequences), rows, costs)
        for (sequence, _), width in zip(found, widths, strict=True):
            if width and not sequence.draft:
                wanted.append((sequence, width))
            del sequence.draft[width:]
        if self.model is None or not wanted:
            return Drafted()
        reading = False
        for sequence, draft in self.model.draft(wanted).items():
            reading |= not draft
            size = sequence.sampler.vocab_size
            known = next((i for i, token in enumerate(draft) if token >= size), len(draft))
            sequence.draft = draft[:known]
        return Drafted(self.model.steps, self.model.read, reading)

    def planned(
        self, sequences: Sequence[TokenSequence], costs: StepCosts, chance: float, most: int
    ) -> tuple[int, float]:
        """How long a draft by lookup would be beside such sequences, and what tokens the step would cost this one."""
        count = len(sequences)
        candidate, rate, without = Candidate(chance, most), costs.rate(count), costs.of(count)
        [width] = best_widths([candidate], count, count + most, costs.of, rate, without)
        alone = costs.relative(count, count)
        return width, alone + count * (costs.relative(count + width, count) - alone)

    def _widths(self, found: Sequence[Candidate], sequences: int, rows: int, costs: StepCosts) -> list[int]:
        if self.gate.always:
            each = (rows - sequences) // max(1, len(found))
            return [max(0, min(each, one.most)) for one in found]
        rate = costs.rate(sequences)
        if self.model is None or self._lookup:  # the next step may find a draft, so this one is waited for
            return best_widths(found, sequences, rows, costs.of, rate, costs.of(sequences))
        for hope in HOPES:
            hoped = [one._replace(chance=max(one.chance, hope)) for one in found]
            widths = best_widths(hoped, sequences, rows, costs.of, rate, costs.undrafted(sequences))
            if any(widths):
                return widths
        return [0] * len(found)

    def release(self, sequence: TokenSequence) -> None:
        """A sequence has ended, or begins anew."""
        sequence.draft = []
        if self.model is not None:
            self.model.release(sequence)

    def close(self) -> None:
        """Gives back all memory."""
        if self.model is not None:
            self.model.close()


def can_draft(sequence: TokenSequence) -> bool:
    """Whether all of its tokens are known and only the last is yet to be fed."""
    drafting = sequence.drafting
    decodes = sequence.prompt < sequence.length and len(sequence.ids) == sequence.fed + 1
    return drafting is not None and drafting.on and decodes and not sequence.in_flight
