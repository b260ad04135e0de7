"""Replacing a file as a whole: whatever happens on the way, the old one or the new one is there, complete.

The new file is written beside the old one, synced, read back, and only then renamed: a full disk, a crash or a kill
leaves the old file.
"""

import contextlib
import importlib
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .errors import BadInput, printable

WINDOWS = os.name == "nt"  # there no open file can be renamed, replaced or deleted
PAUSES = (0.01, 0.03, 0.1, 0.3, 0.6)  # seconds between tries there: scanners open what is new, for a moment
LOCKED_AT = 1 << 30  # the byte that a lock is on there: a locked byte cannot be read by others
ABANDONED = 3600.0  # seconds after which nobody writes an unfinished file any more
UNFINISHED = ".saving-"  # after the name of the file, in the name of one that is being written


class Unreadable(Exception):
    """What was written cannot be read back."""


def replace_file(
    path: str | os.PathLike[str],
    *,
    write: Callable[[BinaryIO], None],
    check: Callable[[BinaryIO], object],
    before_replace: Callable[[int], None] | None = None,
) -> None:
    """Puts what `write` writes in the place of a file, if `check` can read it back (else it raises `Unreadable`).

    BadInput says why it failed. `before_replace` gets the descriptor of the new file, which is locked for this process,
    just before it takes its place; a duplicate of the descriptor keeps the lock. On Windows the file must be closed
    before, so it is not called.
    """
    target, refused = _target(path), f"{printable(os.fspath(path))}: cannot be written"
    try:
        _remove_unfinished(target)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=_prefix(target))
    except OSError as error:
        raise BadInput(f"{refused}: {error.strerror}") from None
    try:
        with open(handle, "w+b") as file:
            lock(handle)  # so that nobody takes it for what a killed process left
            _keep_mode(handle, target)
            write(file)
            file.flush()
            os.fsync(handle)
            file.seek(0)
            check(file)
            if WINDOWS:
                file.close()
            elif before_replace is not None:
                before_replace(handle)
            put_in_place(name, target)
        _sync_folder(target.parent)
    except OSError as error:
        raise BadInput(f"{refused}: {error.strerror}; the old file is as it was") from None
    except Unreadable as error:
        raise BadInput(f"{refused}: reading it back fails, it {error}; the old file is as it was") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def replace_text(path: Path, text: str) -> None:
    """Puts a text in the place of a file, in a folder that is made where it is missing. BadInput says why it failed."""
    data = text.encode()

    def write(file: BinaryIO) -> None:
        file.write(data)

    def check(file: BinaryIO) -> None:
        if file.read() != data:
            raise Unreadable("differs")

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{printable(os.fspath(path))}: cannot be written: {error.strerror}") from None
    replace_file(path, write=write, check=check)


def put_in_place(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Renames a closed file over another. Where Windows refuses, as somebody has one of them open, it tries again."""
    for pause in PAUSES if WINDOWS else ():
        try:
            os.replace(source, target)
        except PermissionError:
            time.sleep(pause)
        else:
            return
    os.replace(source, target)


def lock(handle: int) -> bool:
    """Locks an open file for this process; False where another one has it. Some disks have no such lock."""
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
    """The same on Windows, which locks bytes, from where a file stands."""
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


def _target(path: str | os.PathLike[str]) -> Path:
    """The file that a path leads to, through links. BadInput where no file can be."""
    name = printable(os.fspath(path))
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode if target.exists() else stat.S_IFREG
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{name}: cannot be written: {reason}") from None
    if not stat.S_ISREG(mode):
        raise BadInput(f"{name}: cannot be written: {'Is a directory' if stat.S_ISDIR(mode) else 'it is not a file'}")
    return target


def _prefix(target: Path) -> str:
    """How the name begins of what becomes this file; a name has 255 bytes at most."""
    start = target.name.encode("utf-8", "surrogateescape")[:200].decode("utf-8", "ignore")
    return f".{start}{UNFINISHED}"


def _keep_mode(handle: int, target: Path) -> None:
    """A new file has the permissions of the one that it replaces; without one, its owner alone reads it."""
    with contextlib.suppress(OSError, AttributeError):  # Windows cannot
        os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))


def _remove_unfinished(target: Path) -> None:
    """Removes what killed processes left of this file. What is still being written is locked, and stays."""
    prefix = _prefix(target)
    for entry in os.scandir(target.parent):
        if entry.name.startswith(prefix) and entry.is_file(follow_symlinks=False):
            with contextlib.suppress(OSError):
                if WINDOWS:  # which deletes no open file, and unlocks it just before it is renamed
                    if time.time() - entry.stat().st_mtime > ABANDONED:
                        os.unlink(entry.path)
                    continue
                with open(entry.path, "r+b") as file:
                    if lock(file.fileno()):
                        os.unlink(entry.path)


def _sync_folder(folder: Path) -> None:
    """Has the disk know of the new name, where a folder can be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
