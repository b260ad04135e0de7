"""Advisory locks of output files: one process at a time writes a file; a second one's error names the first."""

import contextlib
import hashlib
import importlib
import json
import os
import sys
import time
from pathlib import Path

from .errors import FileInUse, printable

WINDOWS = os.name == "nt"  # cannot rename, replace or delete open files
LOCKED_AT = 1 << 30  # the locked byte on Windows, beyond the data: others cannot read a locked byte
LONGEST_NAME = 200  # bytes of a file's name that names of hidden files repeat; a name has at most 255
SUFFIX = ".rwkv-gpu.lock"
MOST = 1024  # bytes read of a lock file
PAUSE = 0.05  # seconds between attempts
TRIES = 20  # attempts to open a file that Windows is deleting
hidden_files: set[Path] = set()  # locks and unfinished files of this process


class WriterLock:
    """The right to write a file; `close` releases it.

    The lock is on a hidden file in the same folder, because writing replaces the file itself. The hidden file contains
    the process id and the command of the holder. A killed process loses its locks; the next writer removes the file.
    """

    def __init__(self, path: str | os.PathLike[str], patience: float = 0.0) -> None:
        """Locks the file that `path` leads to. Raises FileInUse with the holder after `patience` seconds.

        Raises OSError if no file can be created in the folder.
        """
        self.target = Path(os.path.realpath(path))
        self._place = self.target.with_name(hidden_name(self.target, SUFFIX))
        self._handle: int | None = self._acquired(os.fspath(path), time.monotonic() + patience)

    def __enter__(self) -> "WriterLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the lock and removes its file."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if WINDOWS:  # Windows refuses to delete a file that is open here or in the next writer
            os.close(handle)
        with contextlib.suppress(OSError):
            os.unlink(self._place)
        hidden_files.discard(self._place)
        if not WINDOWS:
            os.close(handle)

    def _acquired(self, name: str, until: float) -> int:
        """Opens and locks the hidden file, which its holder may be removing."""
        tries = 0
        while True:
            handle = self._opened(last=tries == TRIES)
            if handle is not None:
                if lock(handle):
                    if _is_at(handle, self._place):
                        hidden_files.add(self._place)
                        _sign(handle)
                        return handle
                elif time.monotonic() >= until:
                    who = f"{printable(name)}: {_holder(handle)}"
                    os.close(handle)
                    raise FileInUse(f"{who} is writing it; wait until it ends, or give another file")
                os.close(handle)
            tries += handle is None
            time.sleep(PAUSE)

    def _opened(self, last: bool) -> int | None:
        """Opens or creates the hidden file. Returns None while Windows deletes it, and so refuses to open it."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        try:
            return os.open(self._place, flags, 0o644)
        except PermissionError:
            if not WINDOWS or last:
                raise
            return None


def hidden_name(target: Path, suffix: str) -> str:
    """The name of a hidden file that belongs to a target: its own name, shortened if needed, and a suffix."""
    data = os.fsencode(target.name)
    name = target.name
    if len(data) > LONGEST_NAME:
        name = data[: LONGEST_NAME - 16].decode("utf-8", "ignore") + hashlib.sha256(data).hexdigest()[:16]
    return f".{name}{suffix}"


def remove_hidden_files() -> None:
    """Removes the hidden files of this process, which a signal is about to end."""
    for path in tuple(hidden_files):
        with contextlib.suppress(OSError):
            os.unlink(path)


def lock(handle: int) -> bool:
    """Locks an open file for this process; False if another process holds the lock. Some file systems have no locks."""
    try:
        import fcntl
    except ImportError:
        return _lock_byte(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _lock_byte(handle: int) -> bool:
    """Locks a byte at the current file position, for Windows."""
    try:
        msvcrt = importlib.import_module("msvcrt")
    except ImportError:
        return True
    at = os.lseek(handle, 0, os.SEEK_CUR)
    try:
        os.lseek(handle, LOCKED_AT, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    finally:
        os.lseek(handle, at, os.SEEK_SET)
    return True


def _is_at(handle: int, path: Path) -> bool:
    """True if an open file is still the file at a path."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    """Writes this process's id and command to its lock file."""
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    words = [program if program not in ("", "-c", "-m") else "python", *sys.argv[1:2]]
    command = " ".join(word for word in words if not word.startswith("-"))  # options may have secrets
    data = json.dumps({"pid": os.getpid(), "command": command}).encode()
    with contextlib.suppress(OSError):  # the disk may be full
        os.ftruncate(handle, 0)
        os.write(handle, data)


def _holder(handle: int) -> str:
    """The process that holds a lock: process 123 (rwkv-gpu quantize)"""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        os.lseek(handle, 0, os.SEEK_SET)
        found = json.loads(os.read(handle, MOST))
        return f"process {int(found['pid'])} ({printable(str(found['command']), 80)})"
    return "another process"
