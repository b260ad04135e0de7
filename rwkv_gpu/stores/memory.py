"""A store in the memory of this process, which several models may share."""

import threading
import time
from collections.abc import Callable, Sequence

from .bounded import Bounded
from .store import DEFAULT_AGE, DEFAULT_BYTES


class MemoryStore:
    """Values in a dict; those that were not used for longest go first."""

    def __init__(
        self, max_bytes: int = DEFAULT_BYTES, max_age: float = DEFAULT_AGE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._values: Bounded[bytes] = Bounded(max_bytes, max_age, clock)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self._values.nbytes

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys; None for one that is not there."""
        with self._lock:
            return [self._values.get(key) for key in keys]

    def put(self, key: str, value: bytes) -> None:
        """Stores a value, unless it is larger than the whole store."""
        with self._lock:
            self._values.put(key, value, len(value))
