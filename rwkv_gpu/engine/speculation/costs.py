"""Step times by number of rows, measured or estimated, and the best number of tokens to draft."""

import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Cost of an additional row relative to a one-row step; low, so that drafts are tried before anything is measured
GUESS = 0.05
LAST = 7  # number of recent measurements used
FADE = 0.9999  # decay per measurement: a cost that was not measured for long is assumed lower, until it is tried again
MAX_FADED = 0.8
DRAFT_FADED = 0.2  # the same for steps of a draft model, which are not measured while they seem too expensive
STALE = 0.95  # below this, steps without drafts are measured again: about 500 steps after the last time
DRAFT_GUESS = 0.5  # step of a draft model relative to a step without drafts, before one is measured


class StepCosts:
    """Step times in seconds, by rows rounded up to a power of two, and the step time of the draft model."""

    def __init__(self) -> None:
        self.waited = Measured()  # steps whose result is awaited before the next begins, as drafts require
        self.ahead = Measured()  # steps with others submitted behind them
        self._draft = Measured(DRAFT_FADED)  # steps of the draft model, including their share of the round trip

    def measured(self, rows: int, seconds: float, *, ahead: bool) -> None:
        """Records a step, or the mean of several."""
        one, other = (self.ahead, self.waited) if ahead else (self.waited, self.ahead)
        one.add(bucket(rows), seconds)
        one.fade(but=bucket(rows))
        other.fade()
        self._draft.fade()

    def drafted(self, steps: int, sequences: int, seconds: float) -> None:
        """Records `steps` steps of the draft model, for `sequences` sequences."""
        self._draft.add(bucket(sequences), seconds / steps)

    def known(self, sequences: int) -> bool:
        """True if steps without drafts were measured twice recently; a single measurement may have been disturbed."""
        return self.ahead.sure(bucket(sequences))

    def without(self, rows: int) -> float | None:
        """Seconds of a step without drafts; None if none was measured."""
        return self.ahead.seconds.get(bucket(rows))

    def of(self, rows: int) -> float:
        """Seconds of a step whose result is awaited."""
        return _between({**self.ahead.seconds, **self.waited.seconds}, bucket(rows))

    def draft_step(self, sequences: int) -> float:
        """Seconds of a draft model step, which drafts one token of each sequence."""
        known = self._draft.seconds
        return _between(known, bucket(sequences)) if known else DRAFT_GUESS * self.undrafted(sequences)

    def rate(self, sequences: int) -> float:
        """Tokens per second of steps without drafts."""
        return sequences / self.undrafted(sequences)

    def relative(self, rows: int, sequences: int, drafted: int = 0) -> float:
        """Time of an awaited step plus `drafted` draft model steps, relative to a step without drafts."""
        drafting = drafted * self.draft_step(sequences) if drafted else 0.0
        return (self.of(rows) + drafting) / self.undrafted(sequences)

    def undrafted(self, sequences: int) -> float:
        """Seconds of a step without drafts; if unmeasured, estimated from an awaited step."""
        return self.without(sequences) or self.of(sequences)


@dataclass
class Gain:
    """The time of steps with drafts, and the time that their tokens would have taken without.

    Both are medians of measurements, in steps without drafts, so that disturbed steps do not count.
    """

    took: float = 0.0
    without: float = 0.0

    def add(self, took: float, without: float) -> None:
        """Adds a step."""
        self.took += took
        self.without += without

    @property
    def factor(self) -> float | None:
        """How many times as fast steps with drafts were; None if none was measured."""
        return self.without / self.took if self.took > 0 else None


class Measured:
    """Step times by bucket: the median of recent ones, the lower of two, since disturbances make steps longer.

    A single measurement is not used. The first of a bucket is dropped, because it includes one-time preparation. Old
    measurements are dropped after a long time without new ones.
    """

    def __init__(self, max_faded: float = MAX_FADED) -> None:
        self._max_faded = max_faded
        self.seconds: dict[int, float] = {}
        self._begun: set[int] = set()
        self._last: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=LAST))
        self._faded: dict[int, float] = {}

    def add(self, bucket: int, seconds: float) -> None:
        """Adds a measurement."""
        if bucket not in self._begun:
            self._begun.add(bucket)
            return
        if self._faded.get(bucket, 1.0) <= STALE:
            self._last[bucket].clear()
        self._last[bucket].append(seconds)
        self._faded[bucket] = 1.0
        if len(self._last[bucket]) < 2:
            return
        self.seconds[bucket] = sorted(self._last[bucket])[(len(self._last[bucket]) - 1) // 2]  # the lower median

    def sure(self, bucket: int) -> bool:
        """True if there are at least two measurements, the last of them recent."""
        return len(self._last[bucket]) > 1 and self._faded[bucket] > STALE

    def fade(self, but: int = 0) -> None:
        """Ages the measurements of all buckets except `but`."""
        for bucket in self.seconds:
            if bucket != but and self._faded[bucket] > self._max_faded:
                self._faded[bucket] *= FADE
                self.seconds[bucket] *= FADE


def bucket(rows: int) -> int:
    """The next power of two from `rows`: the size of its plan."""
    return 1 << max(0, rows - 1).bit_length()


def _between(points: Mapping[int, float], rows: int) -> float:
    """Seconds for `rows`: measured, interpolated, or extrapolated from the nearest measurement."""
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
    """Assumed relative step time by rows, before anything is measured."""
    return 1 + GUESS * (rows - 1)


class Candidate(NamedTuple):
    """A possible draft for a sequence."""

    chance: float  # probability that a token is right if all before it are
    most: int  # maximum tokens
    step: float = 0.0  # draft model seconds per token; all sequences share its steps


def best_widths(
    candidates: Sequence[Candidate], rows: int, most: int, seconds: Callable[[int], float], rate: float, without: float
) -> list[int]:
    """Returns the number of tokens for each draft.

    A step has `rows` rows without drafts, and at most `most`. The n-th token of a draft is accepted with probability
    chance^n. Without drafts, `rate` tokens per second are generated; the best widths gain most compared with that. A
    step without any draft takes `without` seconds.
    """
    tokens = [(one.chance**n, -i, -n) for i, one in enumerate(candidates) for n in range(1, one.most + 1)]
    tokens.sort(reverse=True)  # most likely first, so the tokens of a draft stay in order
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
