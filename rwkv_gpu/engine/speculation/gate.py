"""Whether drafting pays at the moment. Tokens a second are measured with drafts and without, in turns."""

from collections.abc import Hashable

WINDOW = 12  # steps of a measurement
LEAST, MOST = 48, 768  # tokens between two trials of the other way


class SpeculationGate:
    """Drafts are on where they give more tokens a second.

    A trial of the other way costs little: it lasts WINDOW steps, and comes more rarely the more often it has lost.
    """

    def __init__(self) -> None:
        self.on = True
        self.rates: dict[bool, float] = {}  # tokens a second, with drafts and without
        self._running: Hashable = None  # what runs: a change begins a new measurement
        self._steps = self._tokens = 0
        self._seconds = 0.0
        self._since_trial = 0  # tokens
        self._patience = LEAST
        self._trial = False

    def stepped(self, running: Hashable, tokens: int, seconds: float) -> None:
        """A step of these sequences gave so many tokens and took so long; None is a step that tells nothing."""
        if running is None or running != self._running:
            self._running, self._steps, self._tokens, self._seconds = running, 0, 0, 0.0
            return
        self._steps += 1
        self._tokens += tokens
        self._seconds += seconds
        self._since_trial += tokens
        if self._steps >= WINDOW and self._tokens:
            self.rates[self.on] = self._tokens / max(self._seconds, 1e-9)
            self._running = None  # the first step of the next measurement may still be of the way before
            self._choose()

    def _choose(self) -> None:
        other = self.rates.get(not self.on)
        if other is None or (not self._trial and self._since_trial >= self._patience):
            self.on, self._trial, self._since_trial = not self.on, True, 0
            return
        better = self.rates[self.on] >= other
        if self._trial:
            self._patience = LEAST if better else min(MOST, 2 * self._patience)
        self._trial = False
        if not better:
            self.on = not self.on
