"""Replaces files atomically: after any failure, either the old or the new file is there, complete.

The new file is written to the same folder, synced, read back, and only then renamed. So a full disk, a crash or a kill
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

WINDOWS = os.name == "nt"  # cannot rename, replace or delete open files
PAUSES = (0.01, 0.03, 0.1, 0.3, 0.6)  # seconds between attempts on Windows, where scanners briefly open new files
LOCKED_AT = 1 << 30  # the locked byte on Windows, beyond the data: others cannot read a locked byte
ABANDONED = 3600.0  # seconds after which an unfinished file is considered abandoned
UNFINISHED = ".saving-"  # follows the target's name in the name of an unfinished file


class Unreadable(Exception):
    """Written data cannot be read back."""


def replace_file(
    path: str | os.PathLike[str],
    *,
    write: Callable[[BinaryIO], None],
    check: Callable[[BinaryIO], object],
    before_replace: Callable[[int], None] | None = None,
) -> None:
    """Writes a file with `write`, then replaces the old one unless `check`, which reads it back, raises `Unreadable`.

    Raises BadInput with the reason of a failure. `before_replace` gets the descriptor of the new file, locked for this
    process, just before the replacement; a duplicate of the descriptor keeps the lock. It is not called on Windows,
    where the file must be closed before.
    """
    target, refused = _target(path), f"{printable(os.fspath(path))}: cannot be written"
    try:
        _remove_unfinished(target)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=_prefix(target))
    except OSError as error:
        raise BadInput(f"{refused}: {error.strerror}") from None
    try:
        with open(handle, "w+b") as file:
            lock(handle)  # so that it is not taken for a leftover of a killed process
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
    """Replaces a file by a text; creates the folder if missing. Raises BadInput with the reason of a failure."""
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
    """Renames a closed file over another. On Windows it retries while another program has one of them open."""
    for pause in PAUSES if WINDOWS else ():
        try:
            os.replace(source, target)
        except PermissionError:
            time.sleep(pause)
        else:
            return
    os.replace(source, target)


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


def _target(path: str | os.PathLike[str]) -> Path:
    """Resolves links to the file to be written. Raises BadInput if it cannot be a file."""
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
    """Prefix of the names of a target's unfinished files; a file name has at most 255 bytes."""
    start = target.name.encode("utf-8", "surrogateescape")[:200].decode("utf-8", "ignore")
    return f".{start}{UNFINISHED}"


def _keep_mode(handle: int, target: Path) -> None:
    """Copies the permissions of the replaced file; a new file is readable by its owner only."""
    with contextlib.suppress(OSError, AttributeError):  # Windows cannot
        os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))


def _remove_unfinished(target: Path) -> None:
    """Removes what killed processes left of this file. Files still being written are locked, and stay."""
    prefix = _prefix(target)
    for entry in os.scandir(target.parent):
        if entry.name.startswith(prefix) and entry.is_file(follow_symlinks=False):
            with contextlib.suppress(OSError):
                if WINDOWS:  # which cannot delete an open file, and unlocks it just before the rename
                    if time.time() - entry.stat().st_mtime > ABANDONED:
                        os.unlink(entry.path)
                    continue
                with open(entry.path, "r+b") as file:
                    if lock(file.fileno()):
                        os.unlink(entry.path)


def _sync_folder(folder: Path) -> None:
    """Syncs the folder, so that the rename reaches the disk; skipped where impossible."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
