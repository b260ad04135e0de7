"""A store in Valkey or Redis, which many machines can share."""

import time
from collections.abc import Sequence
from typing import Any

from ..errors import BadInput, MissingExtra
from .store import DEFAULT_AGE, DEFAULT_BYTES, EvictionPolicy, StoreDown

PREFIX = "rwkv-gpu:"
USED, SIZES = "rwkv-gpu/used", "rwkv-gpu/sizes"  # for each value: time of its last use, and its size
PATIENCE = 2.0  # seconds for a connection and for each response


class ValkeyStore:
    """Values on a server with a URL such as valkey://localhost:6379/0. The server expires them by age.

    The least recently used are removed first. The server may also have its own `maxmemory` and policy.
    """

    def __init__(
        self, url: str, max_bytes: int = DEFAULT_BYTES, max_age: float = DEFAULT_AGE, patience: float = PATIENCE
    ) -> None:
        try:
            import valkey
        except ModuleNotFoundError:
            raise MissingExtra.of("a store in Valkey needs valkey", "valkey") from None
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._tidying = EvictionPolicy(max_bytes, max_age)
        self._failed: Any = valkey.exceptions.ValkeyError
        try:
            self._client: Any = valkey.Valkey.from_url(
                url.replace("redis", "valkey", 1), socket_timeout=patience, socket_connect_timeout=patience
            )
        except ValueError as error:
            raise BadInput(f"{url}: {error}") from None

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys; None for missing ones."""
        now = time.time()
        try:
            with self._client.pipeline(transaction=False) as pipe:
                pipe.mget([PREFIX + key for key in keys])
                pipe.zadd(USED, dict.fromkeys(keys, now), xx=True)
                values: list[bytes | None] = pipe.execute()[0]
        except self._failed as error:
            raise StoreDown(f"the store did not answer: {error}") from None
        return values

    def put(self, key: str, value: bytes) -> None:
        """Stores a value with an expiry time, unless it is larger than the whole store."""
        if len(value) > self._max_bytes:
            return
        try:
            with self._client.pipeline(transaction=False) as pipe:
                pipe.set(PREFIX + key, value, px=max(1, round(1000 * self._max_age)))
                pipe.zadd(USED, {key: time.time()})
                pipe.hset(SIZES, key, len(value))
                pipe.execute()
            self._tidy(len(value))
        except self._failed as error:
            raise StoreDown(f"the store did not take a value: {error}") from None

    def _tidy(self, nbytes: int) -> None:
        """Occasionally evicts excess entries."""
        if not self._tidying.is_due(nbytes):
            return
        found = self._client.zrevrange(USED, 0, -1, withscores=True)
        sizes = self._client.hmget(SIZES, [key for key, _ in found]) if found else []
        values = ((used, int(size or 0), key) for (key, used), size in zip(found, sizes, strict=True))
        out = self._tidying.outdated(values)
        if out:
            with self._client.pipeline(transaction=False) as pipe:
                pipe.delete(*(PREFIX.encode() + key for key in out))
                pipe.zrem(USED, *out)
                pipe.hdel(SIZES, *out)
                pipe.execute()
