"""When a stored state is worth its bytes: fetching it must be faster than computing its tokens, by measured rates."""

import time
from collections.abc import Callable

LATELY = 60.0  # seconds for which a measured bandwidth counts: a network changes, and what is not used is not measured
SURE = 0.5  # of the time to compute: a fetch that takes less is waited for alone
HEDGE = 0.1  # of the time to compute: after so long, computing begins beside the fetch
UNMEASURED = 0.25  # seconds, where nobody knows yet how long computing takes
LEAST = 0.01  # seconds: below them nobody notices
MOST = 1.5  # of the expected time of a fetch that is waited for alone


class Rate:
    """How much was done in a second, lately; None before the first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.value: float | None = None
        self._clock = clock
        self._at = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """So much took so long."""
        new = amount / max(seconds, 1e-6)
        self.value = new if self.value is None else 0.7 * self.value + 0.3 * new
        self._at = self._clock()

    @property
    def recent(self) -> float | None:
        """The same, unless it was measured too long ago."""
        return self.value if self._clock() - self._at < LATELY else None


class FetchRule:
    """What was measured of a store and of the engine, and what follows from it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.fetched, self.stored = Rate(clock), Rate(clock)  # bytes from the store, and to it
        self.restored = Rate(clock)  # bytes into the engine
        self.asked = Rate(clock)  # small requests to the store, one after the other
        self.computed = Rate(clock)  # tokens of prompts
        self.least = LEAST

    def fetching(self, nbytes: int) -> float | None:
        """Seconds that a state takes from the store into the engine; None where nobody knows."""
        bandwidth = self.fetched.recent or self.stored.recent
        if bandwidth is None:
            return None
        latency = 1 / self.asked.value if self.asked.value else 0.0
        restoring = nbytes / self.restored.value if self.restored.value else 0.0
        return latency + nbytes / bandwidth + restoring

    def computing(self, tokens: int) -> float | None:
        """Seconds that tokens of a prompt take; None where nobody knows."""
        return None if self.computed.value is None else tokens / self.computed.value

    def pays(self, nbytes: int, tokens: int) -> bool:
        """Whether fetching is faster than computing. Where one is not known, it is tried, so that it gets known."""
        fetching, computing = self.fetching(nbytes), self.computing(tokens)
        return fetching is None or computing is None or fetching < computing

    def patience(self, tokens: int) -> float:
        """Seconds after which computing begins beside a fetch: the most that a fetch in vain can cost."""
        computing = self.computing(tokens)
        return max(self.least, UNMEASURED if computing is None else HEDGE * computing)

    def waits(self, nbytes: int, tokens: int) -> float:
        """The same once the size of the state is known: longer where the fetch is sure to be faster."""
        fetching, computing = self.fetching(nbytes), self.computing(tokens)
        patience = self.patience(tokens)
        if fetching is None or computing is None or fetching > SURE * computing:
            return patience
        return max(patience, MOST * fetching)

    def pays_to_restore(self, nbytes: int, tokens: int) -> bool:
        """Whether a state that is here is worth bringing into the engine, with so many tokens left to compute."""
        computing = self.computing(tokens)
        if computing is None or self.restored.value is None:
            return tokens > 0
        return nbytes / self.restored.value < computing
