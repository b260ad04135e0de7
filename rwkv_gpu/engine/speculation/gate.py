"""Whether drafts are made at the moment: where they give more tokens a second than steps that are submitted ahead."""

from collections.abc import Sequence

from .costs import StepCosts
from .drafting import Drafting

FIRST = 8  # steps with drafts before the other way is measured
BLIND = 100  # steps without drafts that may go by until one is measured
MARGIN = 1.05  # drafts begin where they are so many times faster, and end where they are slower
TRIAL = 6  # steps of a trial of drafts that nobody can watch
LEAST, MOST = 64, 1024  # tokens without drafts between two trials


class SpeculationGate:
    """Compares what steps with drafts give, and what they take, with steps without.

    Drafts by lookup are watched while they are off, which costs the GPU nothing. A draft model must be tried: for some
    steps, and more rarely the more often it has lost.
    """

    def __init__(self, *, always: bool = False) -> None:
        self.on = True
        self.always = always
        self._unmeasured = 0  # steps without drafts before anybody knew what they take
        self._trial = 0  # steps that are left of it
        self._tried = False  # whether drafts are on by a trial
        self._patience = LEAST
        self._rest = 0  # tokens without drafts since the last trial

    def decide(self, drafting: Sequence[Drafting], sequences: int, costs: StepCosts, *, watched: bool) -> None:
        """Drafts on or off, before a step of so many sequences. `watched` says that all drafts can be."""
        if self.always or not drafting:
            return
        undrafted = costs.without(sequences)
        if undrafted is None and self._unmeasured < BLIND:  # steps with drafts come first, then those without
            self.on = costs.waited.count < FIRST
            self._unmeasured += not self.on
            return
        if undrafted is None:  # texts are too short to measure
            undrafted = costs.of(sequences)
        if self._trial:
            self._trial -= 1
            return
        faster = drafted_rate(drafting, sequences, costs) * undrafted / sequences
        if self.on:
            if self._tried:
                self._patience = LEAST if faster >= 1 else min(MOST, 2 * self._patience)
                self._tried = False
            self.on = faster >= 1
            self._rest = 0
        elif faster > MARGIN:
            self.on = True
        elif not watched:
            self._rest += sequences
            if self._rest >= self._patience:
                self.on, self._trial, self._tried = True, TRIAL, True

    def rate(self, drafting: Sequence[Drafting], sequences: int, costs: StepCosts) -> float:
        """Tokens a second of the better way."""
        undrafted = costs.without(sequences) or costs.of(sequences)
        return max(sequences / undrafted, drafted_rate(drafting, sequences, costs))


def drafted_rate(drafting: Sequence[Drafting], sequences: int, costs: StepCosts) -> float:
    """Tokens a second of steps with drafts, as they were of late. Sequences without give a token each."""
    tokens = sequences + sum(one.tokens - 1 for one in drafting)
    return tokens / (costs.of(sequences) * (1 + sum(one.extra for one in drafting)))
