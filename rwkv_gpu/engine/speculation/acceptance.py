"""Acceptance rates of drafted tokens: by source of the draft, for all sequences and for each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .costs import Gain

# Kinds of drafts from a model, and from a head; 0 to 3 are lookup drafts, by the length of the match
MODEL, HEAD = 4, 5
CHANCES = 0.45, 0.6, 0.75, 0.85, 0.8, 0.75  # initial acceptance rate of each kind
WEIGHT = 8.0  # weight of the initial rate, in tokens; also weight of the global rate for one sequence
KEEP_ALL, KEEP_ONE = 0.98, 0.95  # decay of old counts after each draft
MAX_RATE = 0.98  # upper limit of a rate


def kind_of(run: int) -> int:
    """The kind of a lookup draft, by match length: 2 or 3 tokens, up to 7, up to 15, more."""
    return min(3, max(0, run.bit_length() - 2))


class Counts:
    """Counts of compared and accepted draft tokens, by kind, with exponential decay."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self.forget()

    def add(self, kind: int, right: int, tried: int) -> None:
        """Adds a draft: `tried` tokens were compared (up to the first wrong one), `right` were accepted."""
        self._right[kind] = self._keep * self._right[kind] + right
        self._tried[kind] = self._keep * self._tried[kind] + tried

    def forget(self) -> None:
        """Resets the counts."""
        self._right, self._tried = [0.0] * len(CHANCES), [0.0] * len(CHANCES)

    def chance(self, kind: int, before: float) -> float:
        """Estimated acceptance rate, starting from the prior `before`."""
        return min(MAX_RATE, (self._right[kind] + WEIGHT * before) / (self._tried[kind] + WEIGHT))


@dataclass
class Acceptance:
    """Acceptance rates over all sequences of an engine."""

    counts: Counts = field(default_factory=lambda: Counts(KEEP_ALL))

    def chance(self, kind: int) -> float:
        """Probability that a token is right if all before it in its draft are."""
        return self.counts.chance(kind, CHANCES[kind])


@dataclass
class DraftState:
    """Draft state of one sequence: whether it drafts, past results, and what drafts would gain while it does not."""

    most: int  # maximum tokens of a draft
    all: Acceptance = field(default_factory=Acceptance)
    gain: Gain = field(default_factory=Gain)  # gain of all sequences
    on: bool = True  # whether drafts are made now; then each token must be known before the next step
    drafted: int = 0  # tokens drafted so far
    accepted: int = 0  # how many of these were accepted
    kind: int = 0  # kind of the draft being verified
    _counts: Counts = field(default_factory=lambda: Counts(KEEP_ONE))
    _watched: list[int] | None = None  # a draft that is only compared with later tokens, not verified by a step
    _right: int = 0  # its tokens that were right
    _cost: float = 0.0  # cost of the step that would verify it, in tokens

    def chance(self, kind: int) -> float:
        """Probability that a token of a draft is accepted if all tokens before it are."""
        return self._counts.chance(kind, self.all.chance(kind))

    def verified(self, drafted: int, accepted: int) -> None:
        """Records a step with `drafted` tokens (possibly 0), of which `accepted` were right."""
        self.drafted += drafted
        self.accepted += accepted
        self._learn(drafted, accepted)
        self._watched = None

    def forget(self) -> None:
        """Drops the acceptance counts."""
        self._counts.forget()
        self.all.counts.forget()

    def watch(
        self,
        last: int,
        find: Callable[[], tuple[Sequence[int], int]],
        planned: Callable[[float, int], tuple[int, float]],
    ) -> float:
        """While drafts are off: advances the watched draft by one token.

        Returns the gain in tokens when it ends, else 0.

        `find` returns a draft and its kind. `planned` takes an acceptance rate and a number of tokens. It returns the
        length a draft would have and the cost of its step in tokens.
        """
        gained = 0.0
        if self._watched is not None:
            if self._right < len(self._watched) and last == self._watched[self._right]:
                self._right += 1
                return 0.0  # the step that would verify this draft is not complete yet
            self._learn(len(self._watched), self._right)
            gained = 1 + self._right - self._cost
        found, self.kind = find()
        width, self._cost = planned(self.chance(self.kind), len(found))
        self._watched, self._right = list(found[:width]), 0
        return gained

    def _learn(self, drafted: int, accepted: int) -> None:
        if drafted:
            tried = min(drafted, accepted + 1)
            self._counts.add(self.kind, accepted, tried)
            self.all.counts.add(self.kind, accepted, tried)
