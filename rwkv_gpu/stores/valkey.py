"""A store in Valkey or Redis, which many machines share. The server bounds its memory by `maxmemory` and a policy."""

from collections.abc import Sequence
from typing import Any

from ..errors import MissingExtra
from .store import DEFAULT_AGE, StoreDown

PREFIX = "rwkv-gpu:"
PATIENCE = 2.0  # seconds for a connection and for each answer


class ValkeyStore:
    """Values of a server by its URL, such as valkey://localhost:6379/0. The server forgets them by age."""

    def __init__(self, url: str, max_age: float = DEFAULT_AGE, patience: float = PATIENCE) -> None:
        try:
            import valkey
        except ModuleNotFoundError:
            raise MissingExtra(
                "a store in Valkey needs valkey; install it by: pip install 'rwkv-gpu[valkey]'"
            ) from None
        self._milliseconds = max(1, round(1000 * max_age))
        self._failed: Any = valkey.exceptions.ValkeyError
        try:
            self._client: Any = valkey.Valkey.from_url(
                url.replace("redis", "valkey", 1), socket_timeout=patience, socket_connect_timeout=patience
            )
        except ValueError as error:
            raise StoreDown(f"{url}: {error}") from None

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys; None for one that is not there."""
        try:
            values: list[bytes | None] = self._client.mget([PREFIX + key for key in keys])
        except self._failed as error:
            raise StoreDown(f"the store did not answer: {error}") from None
        return values

    def put(self, key: str, value: bytes) -> None:
        """Stores a value until it is too old."""
        try:
            self._client.set(PREFIX + key, value, px=self._milliseconds)
        except self._failed as error:
            raise StoreDown(f"the store did not take a value: {error}") from None
