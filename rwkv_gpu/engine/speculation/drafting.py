"""What is known of the drafts of one sequence: how often they are right, and what those not made would give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .acceptance import KEEP_ONE, Acceptance, Counts, kind_of
from .lookup import NgramIndex


@dataclass
class Drafting:
    """What is drafted for a sequence, and what has come of it."""

    most: int  # tokens of a draft
    all: Acceptance = field(default_factory=Acceptance)
    index: NgramIndex | None = None  # where drafts are looked up
    on: bool = True  # whether drafts are made at the moment: each token must then be known before the next step
    drafted: int = 0  # tokens so far
    accepted: int = 0  # of them
    kind: int = 0  # of the draft that is verified
    _counts: Counts = field(default_factory=lambda: Counts(KEEP_ONE))
    _watched: list[int] | None = None  # a draft that nobody verifies, since the last step with one
    _right: int = 0  # tokens of it that came
    _cost: float = 0.0  # of the step that would verify it, in tokens

    def chance(self, kind: int) -> float:
        """That a token of such a draft is right, given that all before it are."""
        return self._counts.chance(kind, self.all.chance(kind))

    def verified(self, drafted: int, accepted: int) -> None:
        """A step with a draft of so many tokens, or of none; so many were right."""
        self.drafted += drafted
        self.accepted += accepted
        self._learn(drafted, accepted)
        self._watched = None

    def forget(self) -> None:
        """Nothing is known any more of how often drafts are right."""
        self._counts.forget()
        self.all.counts.forget()

    def watch(self, ids: Sequence[int], planned: Callable[[float, int], tuple[int, float]]) -> float:
        """Without drafts, one token further: the tokens that a step with a draft would have gained, where it ends here.

        `planned` says how long the draft would be, by its chance and the tokens that there are, and what tokens the
        step would cost.
        """
        if self.index is None:
            return 0.0
        gained = 0.0
        if self._watched is not None:
            if self._right < len(self._watched) and ids[-1] == self._watched[self._right]:
                self._right += 1
                return 0.0  # the step that would verify this draft has not come to its end
            self._learn(len(self._watched), self._right)
            gained = 1 + self._right - self._cost
        found, run = self.index.find(ids, self.most)
        self.kind, self._right = kind_of(run), 0
        width, self._cost = planned(self.chance(self.kind), len(found))
        self._watched = found[:width]
        return gained

    def _learn(self, drafted: int, accepted: int) -> None:
        if drafted:
            tried = min(drafted, accepted + 1)
            self._counts.add(self.kind, accepted, tried)
            self.all.counts.add(self.kind, accepted, tried)
