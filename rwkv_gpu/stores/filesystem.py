"""A store on any filesystem with an fsspec URL, such as s3://bucket/states, gs:// or sftp://."""

import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from ..errors import BadInput, MissingExtra
from .directory import GONE, name_value
from .store import DEFAULT_AGE, DEFAULT_BYTES, EvictionPolicy, StoreDown

SUFFIX = ".state"
STAMP = struct.Struct("<d")  # time of storing, which some filesystems do not record
# On these a reader may see an incomplete file, so `mv` puts a complete one in place. Object stores need no `mv`.
LOCAL = frozenset({"file", "local"})
RENAMES = LOCAL | {"sftp", "ssh", "smb"}
# Names of the modification time in various filesystems
TIMES = ("mtime", "LastModified", "last_modified", "created", "updated")


class FilesystemStore:
    """One file per value. The oldest are removed first, since few filesystems record when a file is read."""

    def __init__(self, url: str, max_bytes: int = DEFAULT_BYTES, max_age: float = DEFAULT_AGE, **options: Any) -> None:
        """`options` are passed to the filesystem, such as credentials or a server address."""
        try:
            import fsspec
        except ModuleNotFoundError:
            raise MissingExtra.of("a store at such a URL needs fsspec", "fsspec") from None
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._tidying = EvictionPolicy(max_bytes, max_age)
        try:
            filesystem, path = fsspec.url_to_fs(url, **options)
            filesystem.makedirs(path, exist_ok=True)
        except ImportError as error:
            raise MissingExtra(f"{url}: {error}") from None
        except ValueError as error:
            raise BadInput(f"{url} cannot be used as a store: {error}") from None
        except Exception as error:  # noqa: BLE001  each filesystem has its own errors
            raise StoreDown(f"{url}: cannot be used as a store: {error}") from None
        protocols = {filesystem.protocol} if isinstance(filesystem.protocol, str) else {*filesystem.protocol}
        self._renames = bool(RENAMES & protocols)
        # On Windows, fsspec's `mv` copies over an existing file.
        self._rename = name_value if LOCAL & protocols else filesystem.mv
        self._gone = GONE if LOCAL & protocols else (FileNotFoundError,)
        self._filesystem = filesystem
        self._path = path.rstrip("/")

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys; None for missing ones. Reads in parallel if the filesystem supports it."""
        paths = [f"{self._path}/{key}{SUFFIX}" for key in keys]
        try:
            found: Mapping[str, bytes | Exception] = self._filesystem.cat(paths, on_error="return")
        except Exception as error:  # noqa: BLE001
            raise StoreDown(f"the store did not answer: {error}") from None
        return [self._value(found[path]) for path in paths]

    def _value(self, found: bytes | Exception) -> bytes | None:
        if isinstance(found, self._gone):
            return None
        if isinstance(found, Exception):
            raise StoreDown(f"the store did not answer: {found}")
        if len(found) < STAMP.size or not 0 <= time.time() - STAMP.unpack_from(found)[0] <= self._max_age:
            return None
        return bytes(found[STAMP.size :])

    def put(self, key: str, value: bytes) -> None:
        """Stores a value, unless it is larger than the whole store."""
        if len(value) > self._max_bytes:
            return
        data, path = STAMP.pack(time.time()) + value, f"{self._path}/{key}{SUFFIX}"
        try:
            if self._renames:
                made = f"{self._path}/.{secrets.token_hex(8)}{SUFFIX}"
                self._filesystem.pipe_file(made, data)
                self._rename(made, path)
            else:
                self._filesystem.pipe_file(path, data)
            self._tidy(len(data))
        except Exception as error:  # noqa: BLE001
            raise StoreDown(f"the store did not take a value: {error}") from None

    def _tidy(self, nbytes: int) -> None:
        """Occasionally evicts expired or excess entries."""
        if not self._tidying.is_due(nbytes):
            return
        self._filesystem.invalidate_cache(self._path)
        files = [one for one in self._filesystem.ls(self._path, detail=True) if one["name"].endswith(SUFFIX)]
        for name in self._tidying.outdated((self._stored(one), one["size"], one["name"]) for one in files):
            with suppress(*self._gone):  # another process was faster
                self._filesystem.rm_file(name)

    def _stored(self, one: Mapping[str, Any]) -> float:
        """The time at which a file was written."""
        for name in TIMES:
            when = one.get(name)
            if isinstance(when, str):
                when = datetime.fromisoformat(when)
            if when is not None:
                return float(when) if isinstance(when, int | float) else float(when.timestamp())
        return float(self._filesystem.modified(one["name"]).timestamp())
