"""Replacing a file as a whole: whatever happens on the way, the old one or the new one is there, complete.

The new file is written beside the old one, synced, read back, and only then renamed: a full disk, a crash or a kill
leaves the old file.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .errors import BadInput, printable

WINDOWS = os.name == "nt"  # there no open file can be renamed, replaced or deleted
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
    just before it takes its place; a duplicate of the descriptor keeps the lock. Windows has no such lock, and the file
    must be closed there, so it is not called.
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
            os.replace(name, target)
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


def lock(handle: int) -> bool:
    """Locks an open file for this process; False where another one has it. Windows and some disks have no such lock."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
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
    if WINDOWS:
        return
    prefix = _prefix(target)
    for entry in os.scandir(target.parent):
        if entry.name.startswith(prefix) and entry.is_file(follow_symlinks=False):
            with contextlib.suppress(OSError), open(entry.path, "r+b") as file:
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
