"""Chooses drafts: which proposer drafts for a sequence, how many tokens, and whether any draft can pay."""

from collections.abc import Sequence
from typing import NamedTuple

from ..sequence import TokenSequence
from .acceptance import MAX_RATE, MODEL, Acceptance, DraftState
from .costs import Candidate, Gain, StepCosts, best_widths
from .gate import SpeculationGate
from .proposer import Offer, Proposer

# Acceptance rates that a trial assumes, one after the other, until some draft pays: the known rates may be outdated.
ASSUMED_CHANCES = 0.0, 0.85, 0.9, 0.95, MAX_RATE


class Drafted(NamedTuple):
    """The work of proposers for a step."""

    steps: int = 0
    read: bool = False  # whether they read texts before drafting
    reading: bool = False  # whether a text is still being read; such a step's time says nothing about later steps


class Speculator:
    """The proposers of an engine, in order of preference, and their acceptance rates."""

    def __init__(self, most: int, proposers: Sequence[Proposer], *, always: bool = False) -> None:
        """With `always`, every draft has the maximum length, whatever it costs."""
        self.most = most  # maximum tokens of a draft
        self.proposers = tuple(proposers)
        self.gate = SpeculationGate(always=always, watches=all(one.free for one in proposers))
        self._has_free = any(one.free for one in proposers)
        self._acceptance = Acceptance()
        self.gain = Gain()  # over all sequences so far
        self.queued: dict[TokenSequence, Proposer] = {}  # sequences whose drafts are to be queued with the next step

    @property
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans of proposers and compiling their shaders."""
        return sum(one.compile_seconds for one in self.proposers)

    def begin(self, sequence: TokenSequence) -> None:
        """Prepares for a new sequence; sets no `drafting` if it wants no drafts. Any thread may call it."""
        asked = sequence.request.params.draft_tokens
        most = self.most if asked is None else min(asked, self.most)
        if most:
            sequence.drafting = DraftState(most, self._acceptance, self.gain)
            for proposer in self.proposers:
                proposer.begin(sequence)

    def pays(self, sequences: int, rows: int, costs: StepCosts) -> bool:
        """True if drafts for `sequences` sequences could pay with nearly all tokens right; free ones always could."""
        if self._has_free:
            return True
        apart = not any(one.queued for one in self.proposers)
        best = Candidate(MAX_RATE, self.most, costs.draft_step(sequences) if apart else 0.0)
        without = costs.undrafted(sequences)
        return any(best_widths([best] * sequences, sequences, rows, costs.of, costs.rate(sequences), without))

    def propose(self, sequences: Sequence[TokenSequence], rows: int, costs: StepCosts) -> Drafted:
        """Sets a draft for each decoding sequence if it pays. The step has at most `rows` rows."""
        self.queued = {}
        found: list[tuple[TokenSequence, Proposer]] = []
        candidates: list[Candidate] = []
        for sequence in sequences:
            drafting = sequence.drafting
            if drafting is None or not can_draft(sequence):
                continue
            most = min(drafting.most, sequence.room)
            if not sequence.unverified:
                drafting.kind = MODEL
            offers = [(proposer, proposer.offer(sequence, most)) for proposer in self.proposers if most > 0]
            best = max(
                ((_expected(drafting, offer, most), -at) for at, (_, offer) in enumerate(offers) if offer),
                default=None,
            )
            if best is not None:
                proposer, offer = offers[-best[1]]
                assert offer is not None
                if sequence.unverified and not proposer.queued:
                    continue  # it needs all tokens
                drafting.kind, sequence.draft = offer.kind, offer.tokens or []
                step = 0.0 if proposer.free or proposer.queued else costs.draft_step(len(sequences))
                found.append((sequence, proposer))
                candidates.append(Candidate(drafting.chance(offer.kind), most, step))
        wanted: dict[Proposer, list[tuple[TokenSequence, int]]] = {}
        widths = self._widths(candidates, len(sequences), rows, costs)
        for (sequence, proposer), width in zip(found, widths, strict=True):
            del sequence.draft[width:]
            if width and proposer.queued:
                sequence.draft = [0] * width  # replaced when its steps are queued
                self.queued[sequence] = proposer
            elif width and not proposer.free:
                wanted.setdefault(proposer, []).append((sequence, width))
        return _drafted(wanted)

    def watch(self, sequence: TokenSequence, running: int, costs: StepCosts) -> None:
        """While drafting is off, records the gain that a free draft would have had with `running` sequences."""
        free = next((one for one in self.proposers if one.free), None)
        drafting, gained = sequence.drafting, 0.0
        if drafting is not None and free is not None:
            proposer, most = free, drafting.most

            def find() -> tuple[Sequence[int], int]:
                kind, tokens = proposer.offer(sequence, most) or Offer(0)
                return tokens or (), kind

            gained = drafting.watch(sequence.ids[-1], find, lambda chance, most: planned(running, costs, chance, most))
        self.gate.watched(gained, running)

    def _widths(self, found: Sequence[Candidate], sequences: int, rows: int, costs: StepCosts) -> list[int]:
        if self.gate.always:
            each = (rows - sequences) // max(1, len(found))
            return [max(0, min(each, one.most)) for one in found]
        rate = costs.rate(sequences)
        if self._has_free:  # the next step may find a draft, so this one is awaited
            return best_widths(found, sequences, rows, costs.of, rate, costs.of(sequences))
        for assumed in ASSUMED_CHANCES:
            raised = [one._replace(chance=max(one.chance, assumed)) for one in found]
            widths = best_widths(raised, sequences, rows, costs.of, rate, costs.undrafted(sequences))
            if any(widths):
                return widths
        return [0] * len(found)

    def close(self) -> None:
        """Frees all memory."""
        for proposer in self.proposers:
            proposer.close()


def _expected(drafting: DraftState, offer: Offer, most: int) -> float:
    """The number of tokens of a draft that are likely right."""
    count = most if offer.tokens is None else min(most, len(offer.tokens))
    chance = drafting.chance(offer.kind)
    return sum(chance**n for n in range(1, count + 1))


def _drafted(wanted: dict[Proposer, list[tuple[TokenSequence, int]]]) -> Drafted:
    """Lets the proposers draft the wanted number of tokens for each sequence."""
    steps, read, reading = 0, False, False
    for proposer, each in wanted.items():
        for sequence, draft in proposer.draft(each).items():
            reading |= not draft
            size = sequence.sampler.vocab_size
            known = next((i for i, token in enumerate(draft) if token >= size), len(draft))
            sequence.draft = draft[:known]
        steps += proposer.steps
        read |= proposer.read
    return Drafted(steps, read, reading)


def can_draft(sequence: TokenSequence) -> bool:
    """True if only its last token is not fed yet; the device may know this token, and the host not."""
    drafting, known = sequence.drafting, len(sequence.ids)
    if drafting is None or not drafting.on or sequence.length <= sequence.prompt:
        return False
    return sequence.unverified > 0 or (known == sequence.fed + 1 and not sequence.in_flight)


def planned(count: int, costs: StepCosts, chance: float, most: int) -> tuple[int, float]:
    """Length of a free draft with `count` sequences in a step, and the cost of its step in tokens for this sequence."""
    candidate, rate, without = Candidate(chance, most), costs.rate(count), costs.of(count)
    [width] = best_widths([candidate], count, count + most, costs.of, rate, without)
    alone = costs.relative(count, count)
    return width, alone + count * (costs.relative(count + width, count) - alone)
