"""What steps take by their rows, measured in use and guessed until then, and how many tokens are worth drafting."""

import bisect
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

GUESS = 0.05  # what a further row takes, of a step of one row: little, so that drafts are tried where nothing is known
LAST = 7  # measurements that count
FADE = 0.9999  # by measurement: what is not measured for long seems cheaper, until it is tried again
MOST_FADED = 0.8
DRAFT_FADED = 0.2  # the same of steps of a draft model, which nobody measures while they seem too dear
STALE = 0.95  # steps without drafts that have faded so far are measured anew: some 500 steps after the last time
DRAFT_GUESS = 0.5  # a step of a draft model, of a step without drafts, before one is measured


class StepCosts:
    """Seconds of a step, by the power of two that its rows fit in, and of a step of the draft model."""

    def __init__(self) -> None:
        self.waited = Measured()  # of steps whose result is waited for before the next begins, as drafts need it
        self.ahead = Measured()  # of steps with others submitted behind them
        self._draft = Measured(DRAFT_FADED)  # of a step of the draft model, with its share of the round trip

    def measured(self, rows: int, seconds: float, *, ahead: bool) -> None:
        """A step, or the mean of several."""
        one, other = (self.ahead, self.waited) if ahead else (self.waited, self.ahead)
        one.add(bucket(rows), seconds)
        one.fade(but=bucket(rows))
        other.fade()
        self._draft.fade()

    def drafted(self, steps: int, sequences: int, seconds: float) -> None:
        """So many steps of the draft model, for so many sequences."""
        self._draft.add(bucket(sequences), seconds / steps)

    def known(self, sequences: int) -> bool:
        """Whether steps without drafts were measured twice, and lately: one measurement may have been disturbed."""
        return self.ahead.sure(bucket(sequences))

    def without(self, rows: int) -> float | None:
        """Seconds of a step without drafts; None where none was measured."""
        return self.ahead.seconds.get(bucket(rows))

    def of(self, rows: int) -> float:
        """Seconds of a step that is waited for."""
        return _between({**self.ahead.seconds, **self.waited.seconds}, bucket(rows))

    def draft_step(self, sequences: int) -> float:
        """Seconds of a step of the draft model, for each token of a draft."""
        known = self._draft.seconds
        return _between(known, bucket(sequences)) if known else DRAFT_GUESS * self.undrafted(sequences)

    def rate(self, sequences: int) -> float:
        """Tokens a second without drafts."""
        return sequences / self.undrafted(sequences)

    def relative(self, rows: int, sequences: int, drafted: int = 0) -> float:
        """Of a step that is waited for, and of so many of the draft model, by what a step takes without drafts."""
        drafting = drafted * self.draft_step(sequences) if drafted else 0.0
        return (self.of(rows) + drafting) / self.undrafted(sequences)

    def undrafted(self, sequences: int) -> float:
        """Seconds of a step without drafts, by one that is waited for where none was measured."""
        return self.without(sequences) or self.of(sequences)


class Measured:
    """Seconds by bucket: the median of the last, of two the lower, as what disturbs a step makes it longer.

    One alone says nothing. The first of a bucket is dropped: it has what is made at first use. Those before a long time
    without any are forgotten.
    """

    def __init__(self, most_faded: float = MOST_FADED) -> None:
        self._most_faded = most_faded
        self.seconds: dict[int, float] = {}
        self._begun: set[int] = set()
        self._last: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=LAST))
        self._faded: dict[int, float] = {}

    def add(self, bucket: int, seconds: float) -> None:
        """Another measurement."""
        if bucket not in self._begun:
            self._begun.add(bucket)
            return
        if self._faded.get(bucket, 1.0) <= STALE:
            self._last[bucket].clear()
        self._last[bucket].append(seconds)
        self._faded[bucket] = 1.0
        if len(self._last[bucket]) < 2:
            return
        self.seconds[bucket] = statistics.median_low(self._last[bucket])

    def sure(self, bucket: int) -> bool:
        """Whether there are two measurements at least, and the last is not long ago."""
        return len(self._last[bucket]) > 1 and self._faded[bucket] > STALE

    def fade(self, but: int = 0) -> None:
        """A step was of other rows, or of the other kind."""
        for bucket in self.seconds:
            if bucket != but and self._faded[bucket] > self._most_faded:
                self._faded[bucket] *= FADE
                self.seconds[bucket] *= FADE


def bucket(rows: int) -> int:
    """The power of two that so many rows fit in: a plan is for so many."""
    return 1 << max(0, rows - 1).bit_length()


def _between(points: Mapping[int, float], rows: int) -> float:
    """What is known, or lies between what is known, or is guessed from the nearest that is."""
    if rows in points:
        return points[rows]
    known = sorted(points)
    at = bisect.bisect(known, rows)
    if not known:
        return _shape(rows)
    if not at or at == len(known):
        nearest = known[min(at, len(known) - 1)]
        return points[nearest] * _shape(rows) / _shape(nearest)
    below, above = known[at - 1], known[at]
    share = (rows - below) / (above - below)
    return (1 - share) * points[below] + share * points[above]


def _shape(rows: int) -> float:
    """Seconds by rows where nothing is known, in units of nobody."""
    return 1 + GUESS * (rows - 1)


class Candidate(NamedTuple):
    """A draft that a sequence may have."""

    chance: float  # that a token is right, given that all before it are
    most: int  # tokens
    step: float = 0.0  # seconds of the draft model for each; all sequences share its steps


def best_widths(
    candidates: Sequence[Candidate], rows: int, most: int, seconds: Callable[[int], float], rate: float, without: float
) -> list[int]:
    """Tokens for each of some drafts.

    A step has `rows` rows without drafts, and `most` at most. The n-th token of a draft is of use with the n-th power
    of the chance. What a step takes could have given `rate` tokens a second: best is what exceeds that by most. A step
    in which nobody has a draft takes `without`.
    """
    tokens = [(one.chance**n, -i, -n) for i, one in enumerate(candidates) for n in range(1, one.most + 1)]
    tokens.sort(reverse=True)  # likeliest first: so a draft's tokens come in their order
    gained, drafting, best, count = 0.0, 0.0, -rate * without, 0
    for number, (chance, i, n) in enumerate(tokens[: max(0, most - rows)], 1):
        gained += chance
        drafting = max(drafting, -n * candidates[-i].step)
        value = gained - rate * (seconds(rows + number) + drafting)
        if value > best:
            best, count = value, number
    widths = [0] * len(candidates)
    for _, i, _ in tokens[:count]:
        widths[-i] += 1
    return widths
