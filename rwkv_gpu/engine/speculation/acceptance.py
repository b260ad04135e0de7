"""How often drafted tokens are right: by where a draft comes from, for all sequences and for each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MODEL = 4  # drafts of a model; 0 to 3 are drafts by lookup, by the length of the run that was found
CHANCES = 0.45, 0.6, 0.75, 0.85, 0.8  # before anything is known
WEIGHT = 8.0  # tokens that this counts for, and for one sequence what is known of all
KEEP_ALL, KEEP_ONE = 0.98, 0.95  # what is left of old counts after a draft
SURE = 0.98  # nothing is surer


def kind_of(run: int) -> int:
    """The kind of a draft by lookup, by the length of its run: 2 or 3 tokens, up to 7, up to 15, more."""
    return min(3, max(0, run.bit_length() - 2))


class Counts:
    """Drafted tokens that were compared, and those that were right, by kind; old ones count less."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self.forget()

    def add(self, kind: int, right: int, tried: int) -> None:
        """A draft: tokens up to the first that was wrong were compared."""
        self._right[kind] = self._keep * self._right[kind] + right
        self._tried[kind] = self._keep * self._tried[kind] + tried

    def forget(self) -> None:
        """Begins anew."""
        self._right, self._tried = [0.0] * len(CHANCES), [0.0] * len(CHANCES)

    def chance(self, kind: int, before: float) -> float:
        """That a token is right, where its chance was `before` without these counts."""
        return min(SURE, (self._right[kind] + WEIGHT * before) / (self._tried[kind] + WEIGHT))


@dataclass
class Acceptance:
    """Of all sequences of an engine."""

    counts: Counts = field(default_factory=lambda: Counts(KEEP_ALL))

    def chance(self, kind: int) -> float:
        """That a token is right, given that all before it in its draft are."""
        return self.counts.chance(kind, CHANCES[kind])


@dataclass
class Drafting:
    """The drafts of one sequence: whether it has any, what came of them, and what those not made would gain."""

    most: int  # tokens of a draft
    all: Acceptance = field(default_factory=Acceptance)
    on: bool = True  # whether drafts are made at the moment: each token must then be known before the next step
    drafted: int = 0  # tokens so far
    accepted: int = 0  # of them
    kind: int = 0  # of the draft that is verified
    _counts: Counts = field(default_factory=lambda: Counts(KEEP_ONE))
    _watched: list[int] | None = None  # a draft that no step verifies, since the last step with one
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
        """Forgets how often drafts are right."""
        self._counts.forget()
        self.all.counts.forget()

    def watch(
        self,
        last: int,
        find: Callable[[], tuple[Sequence[int], int]],
        planned: Callable[[float, int], tuple[int, float]],
    ) -> float:
        """Without drafts, one token further: the tokens that a step with a draft would have gained, where it ends here.

        `find` gives a draft and its kind. `planned` says how long a draft would be, by its chance and its tokens, and
        what tokens the step would cost.
        """
        gained = 0.0
        if self._watched is not None:
            if self._right < len(self._watched) and last == self._watched[self._right]:
                self._right += 1
                return 0.0  # the step that would verify this draft has not come to its end
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
