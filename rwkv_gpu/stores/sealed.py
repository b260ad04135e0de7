"""Authenticated values: only holders of a secret can write them, each for one key. Others count as missing."""

import hmac
from collections.abc import Callable, Sequence
from hashlib import sha256

from .store import Store

TAG = 32  # bytes, at the end of a value


class SealedStore:
    """A store whose keys and values are authenticated with a secret. A value is valid only under its own key."""

    def __init__(self, store: Store, secret: bytes) -> None:
        self._store = store
        self._secret = secret

    def key(self, *parts: bytes) -> str:
        """The key for some parts. Without the secret, the key does not reveal which texts are stored."""
        digest = hmac.new(self._secret, b"key", sha256)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()

    def get(self, keys: Sequence[str], damaged: Callable[[str], None] = lambda _: None) -> list[bytes | None]:
        """The values of keys; None for missing or forged ones. `damaged` gets the key of each forged value."""
        found = self._store.get(keys)
        values = [None if value is None else self._opened(key, value) for key, value in zip(keys, found, strict=True)]
        for key, sealed, value in zip(keys, found, values, strict=True):
            if sealed is not None and value is None:
                damaged(key)
        return values

    def put(self, key: str, value: bytes) -> None:
        """Stores a value."""
        self._store.put(key, value + self._tag(key, value))

    def _opened(self, key: str, sealed: bytes) -> bytes | None:
        value, tag = sealed[:-TAG], sealed[-TAG:]
        return value if hmac.compare_digest(tag, self._tag(key, value)) else None

    def _tag(self, key: str, value: bytes) -> bytes:
        digest = hmac.new(self._secret, b"value", sha256)
        digest.update(key.encode() + b"\0")
        digest.update(value)
        return digest.digest()
