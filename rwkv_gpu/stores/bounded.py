"""Values by key, bounded in bytes and age. For one thread at a time."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Bounded(Generic[T]):
    """A dict whose least recently used values go first."""

    def __init__(self, max_bytes: int, max_age: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._clock = clock
        self._values: OrderedDict[str, tuple[float, int, T]] = OrderedDict()  # when it was stored, its bytes, and it
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> T | None:
        """A value, if it is there and not too old."""
        if key not in self._values:
            return None
        stored, _, value = self._values[key]
        if self._clock() - stored > self._max_age:
            self._remove(key)
            return None
        self._values.move_to_end(key)
        return value

    def put(self, key: str, value: T, nbytes: int) -> None:
        """Stores a value, unless it is larger than all of them may be."""
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
