"""Decides whether to fetch a stored state: fetching must be faster than computing its tokens, by measured rates."""

import time
from collections.abc import Callable

RATE_LIFETIME = 60.0  # seconds for which a measured bandwidth is valid, as networks change
QUICK_FETCH = 0.5  # a fetch that takes less than this share of the computing time is awaited before computing
HEDGE = 0.1  # share of the computing time after which computing starts in parallel with the fetch
UNMEASURED = 0.25  # patience in seconds while the computing time is unknown
LEAST = 0.01  # minimum patience in seconds: a delay that is not noticed
MOST = 1.5  # a fetch is awaited for at most this many times its expected duration


class Rate:
    """Recent amount per second; None before the first measurement."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.value: float | None = None
        self._clock = clock
        self._at = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Records an amount and its duration."""
        new = amount / max(seconds, 1e-6)
        self.value = new if self.value is None else 0.7 * self.value + 0.3 * new
        self._at = self._clock()

    @property
    def recent(self) -> float | None:
        """The rate, unless it was measured too long ago."""
        return self.value if self._clock() - self._at < RATE_LIFETIME else None


class FetchRule:
    """Measured rates of a store and of the engine, and the decisions based on them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.fetched, self.stored = Rate(clock), Rate(clock)  # bytes from and to the store
        self.restored = Rate(clock)  # bytes into the engine
        self.asked = Rate(clock)  # small requests to the store, in sequence
        self.computed = Rate(clock)  # prompt tokens
        self.least = LEAST

    def fetching(self, nbytes: int) -> float | None:
        """Seconds to bring a state from the store into the engine; None if unknown."""
        bandwidth = self.fetched.recent or self.stored.recent
        if bandwidth is None:
            return None
        latency = 1 / self.asked.value if self.asked.value else 0.0
        restoring = nbytes / self.restored.value if self.restored.value else 0.0
        return latency + nbytes / bandwidth + restoring

    def computing(self, tokens: int) -> float | None:
        """Seconds to compute prompt tokens; None if unknown."""
        return None if self.computed.value is None else tokens / self.computed.value

    def pays(self, nbytes: int, tokens: int) -> bool:
        """True if fetching is faster than computing. If a rate is unknown, it is tried once to measure it."""
        fetching, computing = self.fetching(nbytes), self.computing(tokens)
        return fetching is None or computing is None or fetching < computing

    def patience(self, tokens: int) -> float:
        """Seconds before computing starts in parallel with a fetch: the most that a useless fetch can cost."""
        computing = self.computing(tokens)
        return max(self.least, UNMEASURED if computing is None else HEDGE * computing)

    def waits(self, nbytes: int, tokens: int) -> float:
        """The patience once the state's size is known; longer if the fetch is surely faster than computing."""
        fetching, computing = self.fetching(nbytes), self.computing(tokens)
        patience = self.patience(tokens)
        if fetching is None or computing is None or fetching > QUICK_FETCH * computing:
            return patience
        return max(patience, MOST * fetching)

    def pays_to_restore(self, nbytes: int, tokens: int) -> bool:
        """True if restoring a fetched state pays, with `tokens` prompt tokens left to compute."""
        computing = self.computing(tokens)
        if computing is None or self.restored.value is None:
            return tokens > 0
        return nbytes / self.restored.value < computing
