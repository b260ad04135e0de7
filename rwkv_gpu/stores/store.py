"""What every store of states can do."""

from collections.abc import Sequence
from typing import Protocol

from ..errors import RwkvGpuError

DEFAULT_BYTES = 4 << 30
DEFAULT_AGE = 7 * 86400.0  # seconds


class StoreDown(RwkvGpuError):
    """A store cannot be reached, read or written at the moment. Whoever uses it computes instead."""


class Store(Protocol):
    """Values by key, bounded in bytes and age: any value may be gone at any time. Called from several threads.

    A key is a short text of letters and digits. All methods raise `StoreDown` and nothing else.
    """

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys; None for one that is not there."""

    def put(self, key: str, value: bytes) -> None:
        """Stores a value, whole or not at all."""
