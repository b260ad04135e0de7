"""How often drafted tokens are right: by where a draft comes from, for all sequences and for each."""

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
