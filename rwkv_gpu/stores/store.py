"""The interface of all stores of states, their limits in bytes and age, and a store in memory."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from ..errors import RwkvGpuError

T = TypeVar("T")
DEFAULT_BYTES = 4 << 30
DEFAULT_AGE = 7 * 86400.0  # seconds
CHECKS_PER_LIMIT = 32  # entries are checked after every 1/32 of the maximum bytes written


class StoreDown(RwkvGpuError):
    """A store cannot be reached, read or written at the moment. The caller computes instead."""


class Store(Protocol):
    """Values by key, limited in bytes and age, so any value may disappear at any time. Called from several threads.

    A key is a short text of letters and digits. All methods raise `StoreDown` and nothing else.
    """

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys; None for missing ones."""

    def put(self, key: str, value: bytes) -> None:
        """Stores a value atomically."""


class Bounded(Generic[T]):
    """A size-limited dict with least-recently-used eviction. Not thread-safe."""

    def __init__(self, max_bytes: int, max_age: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._clock = clock
        self._values: OrderedDict[str, tuple[float, int, T]] = OrderedDict()  # time of storing, size, and value
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> T | None:
        """Returns a value, if it exists and is not too old."""
        if key not in self._values:
            return None
        stored, _, value = self._values[key]
        if self._clock() - stored > self._max_age:
            self._remove(key)
            return None
        self._values.move_to_end(key)
        return value

    def put(self, key: str, value: T, nbytes: int) -> None:
        """Stores a value, unless it is larger than the limit."""
        if key in self._values:
            self._remove(key)
        if nbytes > self._max_bytes:
            return
        self._values[key] = self._clock(), nbytes, value
        self.nbytes += nbytes
        while self.nbytes > self._max_bytes:
            self._remove(next(iter(self._values)))

    def _remove(self, key: str) -> None:
        self.nbytes -= self._values.pop(key)[1]


class EvictionPolicy:
    """Decides when a store checks its entries, and which to evict.

    With several writers, no process knows the total size.
    """

    def __init__(self, max_bytes: int, max_age: float) -> None:
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._written = 0  # bytes since the last check
        self._lock = threading.Lock()

    def is_due(self, nbytes: int) -> bool:
        """True if a check is due, now that `nbytes` more bytes were written."""
        with self._lock:
            self._written += nbytes
            due = self._written >= self._max_bytes // CHECKS_PER_LIMIT
            if due:
                self._written = 0
            return due

    def outdated(self, values: Iterable[tuple[float, int, T]]) -> list[T]:
        """The values that are too old or exceed the size, given their times and sizes; oldest first."""
        total, now, out = 0, time.time(), []
        for when, nbytes, value in sorted(values, key=lambda one: -one[0]):
            total += nbytes
            if total > self._max_bytes or now - when > self._max_age:
                out.append(value)
        return out


class MemoryStore:
    """Values in the memory of this process, shared by several models if needed. Least-recently-used eviction."""

    def __init__(
        self, max_bytes: int = DEFAULT_BYTES, max_age: float = DEFAULT_AGE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._values: Bounded[bytes] = Bounded(max_bytes, max_age, clock)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    @property
    def nbytes(self) -> int:
        """Total size of all values."""
        return self._values.nbytes

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys; None for missing ones."""
        with self._lock:
            return [self._values.get(key) for key in keys]

    def put(self, key: str, value: bytes) -> None:
        """Stores a value, unless it is larger than the whole store."""
        with self._lock:
            self._values.put(key, value, len(value))
