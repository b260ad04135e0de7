"""A store in a directory, which several processes, and machines with a shared disk, may use."""

import os
import re
import secrets
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..replace_file import put_in_place
from ..writer_lock import WINDOWS
from .store import DEFAULT_AGE, DEFAULT_BYTES, EvictionPolicy, StoreDown

SUFFIX = ".state"
KEY = "key"  # the file of the secret
KEY_BYTES = 32
UNFINISHED = re.compile(r"\.[0-9a-f]{16}")  # names of files that are being written
ABANDONED = 3600.0  # seconds after which an unfinished file is considered abandoned
# Errors when opening or deleting a file that another process has removed or, on Windows, is replacing or reading.
GONE = (FileNotFoundError, PermissionError) if WINDOWS else (FileNotFoundError,)


def name_value(made: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Renames a written value to its final name.

    On Windows, nothing changes if another process has the old value open.
    """
    try:
        put_in_place(made, path)
    except PermissionError:
        if not (WINDOWS and os.path.exists(path)):
            raise
        os.unlink(made)


class DirectoryStore:
    """One file per value. A read updates the time of the file; the least recently used are removed first."""

    def __init__(
        self, path: str | os.PathLike[str], max_bytes: int = DEFAULT_BYTES, max_age: float = DEFAULT_AGE
    ) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._tidying = EvictionPolicy(max_bytes, max_age)
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreDown(f"{self._path}: cannot be used as a store: {reason}") from None
        self._remove_abandoned()

    def _remove_abandoned(self) -> None:
        """Removes unfinished files of killed writers."""
        with suppress(OSError), os.scandir(self._path) as entries:
            for entry in entries:
                if UNFINISHED.fullmatch(entry.name):
                    with suppress(OSError):  # its writer has removed it already
                        if time.time() - entry.stat().st_mtime > ABANDONED:
                            os.unlink(entry.path)

    def secret(self) -> bytes:
        """The secret shared by all users of this directory, created at first use. Only its owner can read the file."""
        path = self._path / KEY
        try:
            with suppress(FileExistsError):
                made = self._path / f".{secrets.token_hex(8)}"
                made.touch(mode=0o600)
                with made.open("wb") as file:
                    file.write(secrets.token_bytes(KEY_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.link(made, path)  # atomic, and never overwrites
                finally:
                    made.unlink()
            key = b""
            if path.is_file():  # opening a pipe would wait for its writer
                with path.open("rb") as file:
                    key = file.read(KEY_BYTES + 1)
        except OSError as error:
            raise StoreDown(f"{path}: cannot be read or written: {error.strerror}") from None
        if len(key) != KEY_BYTES:
            raise StoreDown(f"{path}: is not a key of {KEY_BYTES} bytes; delete it, and a new one is made")
        return key

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys; None for missing ones."""
        return [self._get(self._path / f"{key}{SUFFIX}") for key in keys]

    def _get(self, path: Path) -> bytes | None:
        try:
            about = path.stat()
            is_old = time.time() - about.st_mtime > self._max_age or about.st_size > self._max_bytes
            if is_old or not stat.S_ISREG(about.st_mode):
                return None
            value = path.read_bytes()
            with suppress(OSError):
                os.utime(path)
        except GONE:
            return None
        except OSError as error:
            raise StoreDown(f"{path}: cannot be read: {error.strerror}") from None
        return value

    def put(self, key: str, value: bytes) -> None:
        """Stores a value, unless it is larger than the whole store."""
        if len(value) > self._max_bytes:
            return
        made = self._path / f".{secrets.token_hex(8)}"
        try:
            try:
                made.write_bytes(value)
                name_value(made, self._path / f"{key}{SUFFIX}")
            except BaseException:
                made.unlink(missing_ok=True)
                raise
            self._tidy(len(value))
        except OSError as error:
            raise StoreDown(f"{self._path}: cannot be written: {error.strerror}") from None

    def _tidy(self, nbytes: int) -> None:
        """Occasionally evicts expired or excess entries."""
        if not self._tidying.is_due(nbytes):
            return
        self._remove_abandoned()
        found = []
        for path in self._path.glob(f"*{SUFFIX}"):
            with suppress(*GONE):  # another process was faster
                about = path.stat()
                found.append((about.st_mtime, about.st_size, path))
        for path in self._tidying.outdated(found):
            with suppress(*GONE):
                path.unlink()
