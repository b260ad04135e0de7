"""How many tokens are drafted for one sequence: more while they are right, fewer and then none while they are not."""

from dataclasses import dataclass, field

from .lookup import NgramIndex

FIRST = 3  # tokens of the first draft
MOST_REST = 64  # tokens without a draft, after drafts that were all wrong


@dataclass
class Drafting:
    """What is drafted for a sequence, and what has come of it."""

    most: int  # tokens of a draft
    index: NgramIndex = field(default_factory=NgramIndex)
    on: bool = True  # whether drafts are made at the moment: each token must then be known before the next step
    drafted: int = 0  # tokens so far
    accepted: int = 0  # of them
    _width: int = FIRST
    _misses: int = 0  # drafts in a row of which nothing was right
    _rest: int = 0  # steps until the next draft

    def width(self) -> int:
        """Tokens that the next draft may have. Counts the steps of a rest."""
        if self._rest:
            self._rest -= 1
            return 0
        return min(self._width, self.most)

    def verified(self, drafted: int, accepted: int) -> None:
        """So many tokens of a draft were right."""
        self.drafted += drafted
        self.accepted += accepted
        if accepted == drafted:
            self._width = min(self.most, 2 * self._width + 1)
        else:
            self._width = max(1, accepted + 1)
        self._misses = 0 if accepted else self._misses + 1
        if self._misses > 1:
            self._rest = min(MOST_REST, 1 << self._misses)
