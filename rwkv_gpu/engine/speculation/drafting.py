"""What is known of the drafts of one sequence: how often they are right, and what steps with them would give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .acceptance import KEEP_ONE, Acceptance, Counts, kind_of
from .lookup import NgramIndex

RECENT = 1 / 32  # weight of the last step in averages


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
    tokens: float = field(init=False)  # that a step gives with drafts, on average
    extra: float = field(init=False)  # what its draft adds to a step, by what the step takes without drafts
    _counts: Counts = field(default_factory=lambda: Counts(KEEP_ONE))
    _watched: list[int] | None = None  # a draft that nobody verifies, since the last step with one
    _right: int = 0  # tokens of it that came
    _extra: float = 0.0  # what it would add to a step

    def __post_init__(self) -> None:
        self.tokens, self.extra = self.all.tokens, self.all.extra

    def chance(self, kind: int) -> float:
        """That a token of such a draft is right, given that all before it are."""
        return self._counts.chance(kind, self.all.chance(kind))

    def verified(self, drafted: int, accepted: int, extra: float) -> None:
        """A step with a draft of so many tokens, or of none; so many were right, and it took so much more."""
        self.drafted += drafted
        self.accepted += accepted
        self._learn(drafted, accepted, extra)
        self._watched = None

    def watch(self, ids: Sequence[int], planned: Callable[[float, int], tuple[int, float]]) -> None:
        """Without drafts, one token further: sees what a draft would have given.

        `planned` says how long it would be, by its chance and the tokens that there are, and what it would add.
        """
        if self.index is None:
            return
        if self._watched is not None:
            if self._right < len(self._watched) and ids[-1] == self._watched[self._right]:
                self._right += 1
                return  # the step that would verify this draft has not come to its end
            self._learn(len(self._watched), self._right, self._extra)
        found, run = self.index.find(ids, self.most)
        self.kind, self._right = kind_of(run), 0
        width, self._extra = planned(self.chance(self.kind), len(found)) if found else (0, 0.0)
        self._watched = found[:width]

    def _learn(self, drafted: int, accepted: int, extra: float) -> None:
        if drafted:
            tried = min(drafted, accepted + 1)
            self._counts.add(self.kind, accepted, tried)
            self.all.counts.add(self.kind, accepted, tried)
        for one in (self, self.all):
            one.tokens += RECENT * (1 + accepted - one.tokens)
            one.extra += RECENT * (extra - one.extra)
