"""What steps take, by how many rows they have: measured in use, guessed where nothing was measured."""

import bisect
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping

GUESS = 0.05  # what a further row takes, of a step of one row: little, so that drafts are tried where nothing is known
LAST = 5  # measurements that count
FADE = 0.9999  # by step: what is not measured for long seems cheaper, until it is tried again
MOST_FADED = 0.8


class StepCosts:
    """Seconds of a step, by the power of two that its rows fit in."""

    def __init__(self) -> None:
        self.waited = Measured()  # of steps whose result is waited for before the next begins, as drafts need it
        self.ahead = Measured()  # of steps with others submitted behind them

    def measured(self, rows: int, seconds: float, *, ahead: bool) -> None:
        """A step, or the mean of several."""
        one, other = (self.ahead, self.waited) if ahead else (self.waited, self.ahead)
        one.add(_bucket(rows), seconds)
        one.fade(but=_bucket(rows))
        other.fade()

    def without(self, rows: int) -> float | None:
        """Seconds of a step without drafts; None where none was measured."""
        return self.ahead.seconds.get(_bucket(rows))

    def of(self, rows: int) -> float:
        """Seconds of a step that is waited for."""
        return _between({**self.ahead.seconds, **self.waited.seconds}, _bucket(rows))

    def rate(self, sequences: int) -> float:
        """Tokens a second without drafts."""
        return sequences / self._undrafted(sequences)

    def relative(self, rows: int, sequences: int) -> float:
        """Of a step that is waited for, by what one of so many sequences takes without drafts."""
        return self.of(rows) / self._undrafted(sequences)

    def _undrafted(self, sequences: int) -> float:
        """Seconds of a step without drafts, by one that is waited for where none was measured."""
        return self.without(sequences) or self.of(sequences)


class Measured:
    """Seconds by bucket: the median of the last, of two the lower, as what disturbs a step makes it longer.

    The first measurement of a bucket is dropped: it has what is made at first use.
    """

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self.count = 0
        self._begun: set[int] = set()
        self._last: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=LAST))
        self._faded: dict[int, float] = {}

    def add(self, bucket: int, seconds: float) -> None:
        """Another measurement."""
        self.count += 1
        if bucket not in self._begun:
            self._begun.add(bucket)
            return
        self._last[bucket].append(seconds)
        self.seconds[bucket] = statistics.median_low(self._last[bucket])
        self._faded[bucket] = 1.0

    def fade(self, but: int = 0) -> None:
        """A step was of other rows, or of the other kind."""
        for bucket, faded in self._faded.items():
            if bucket != but and faded > MOST_FADED:
                self._faded[bucket] *= FADE
                self.seconds[bucket] *= FADE


def _bucket(rows: int) -> int:
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
