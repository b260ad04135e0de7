"""A store in the memory of this process, which several models may share."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from .store import DEFAULT_AGE, DEFAULT_BYTES


class MemoryStore:
    """Values in a dict; those that were not used for longest go first."""

    def __init__(
        self, max_bytes: int = DEFAULT_BYTES, max_age: float = DEFAULT_AGE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._clock = clock
        self._values: OrderedDict[str, tuple[float, bytes]] = OrderedDict()  # when it was stored, and what
        self._lock = threading.Lock()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys; None for one that is not there."""
        with self._lock:
            return [self._get(key) for key in keys]

    def _get(self, key: str) -> bytes | None:
        if key not in self._values:
            return None
        stored, value = self._values[key]
        if self._clock() - stored > self._max_age:
            self._remove(key)
            return None
        self._values.move_to_end(key)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Stores a value, unless it is larger than the whole store."""
        with self._lock:
            if key in self._values:
                self._remove(key)
            if len(value) > self._max_bytes:
                return
            self._values[key] = self._clock(), value
            self.nbytes += len(value)
            while self.nbytes > self._max_bytes:
                self._remove(next(iter(self._values)))

    def _remove(self, key: str) -> None:
        self.nbytes -= len(self._values.pop(key)[1])
