"""Replaces files atomically: after any failure, either the old or the new file is there, complete.

One process at a time writes a file. The new file is written under a unique name to the same folder, synced, read back,
and only then renamed. So a full disk, a crash or a kill leaves the old file; the next writer removes what is left.
"""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .errors import BadInput, printable
from .writer_lock import WINDOWS, WriterLock, hidden_files, hidden_name

PAUSES = (0.01, 0.03, 0.1, 0.3, 0.6)  # seconds between attempts on Windows, where scanners briefly open new files
UNFINISHED = ".saving-"  # follows the target's name in the name of an unfinished file
MAX_OWN = 8 << 20  # bytes of a small file of the package's own
PATIENCE = 10.0  # seconds to wait for another process that is writing the same file


class Unreadable(Exception):
    """Written data cannot be read back."""


def replace_file(
    path: str | os.PathLike[str],
    *,
    write: Callable[[BinaryIO], None],
    check: Callable[[BinaryIO], object] | None = None,
    lock: WriterLock | None = None,
    patience: float = PATIENCE,
    private: bool = True,
) -> None:
    """Writes a file with `write`, then replaces the old one unless `check`, which reads it back, raises `Unreadable`.

    Raises BadInput with the reason of a failure, or with the process that is still writing the file after `patience`
    seconds. `lock` is that of a caller who has already locked the file. Only its owner can read a new `private` file.
    """
    target, refused = _target(path), f"{printable(os.fspath(path))}: cannot be written"
    try:
        with contextlib.nullcontext() if lock is not None else WriterLock(path, patience):
            _remove_unfinished(target)
            _replace(target, write, check, private)
    except OSError as error:
        raise BadInput(f"{refused}: {error.strerror}{_kept(target)}") from None
    except Unreadable as error:
        raise BadInput(f"{refused}: reading it back fails, it {error}{_kept(target)}") from None


def replace_bytes(path: Path, data: bytes, *, lock: WriterLock | None = None, private: bool = True) -> None:
    """Replaces a file by some bytes; creates the folder if missing. Raises BadInput with the reason of a failure."""

    def write(file: BinaryIO) -> None:
        file.write(data)

    def check(file: BinaryIO) -> None:
        if file.read() != data:
            raise Unreadable("differs")

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{printable(os.fspath(path))}: cannot be written: {error.strerror}") from None
    replace_file(path, write=write, check=check, lock=lock, private=private)


def read_own(path: Path) -> str:
    """The text of a small file that this package has written. Raises ValueError or OSError if it is damaged."""
    with path.open("rb") as file:
        data = file.read(MAX_OWN + 1)
    if len(data) > MAX_OWN:
        raise ValueError(f"{path} has more than {MAX_OWN:,} bytes")
    return data.decode("utf-8")


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


def _replace(
    target: Path, write: Callable[[BinaryIO], None], check: Callable[[BinaryIO], object] | None, private: bool
) -> None:
    """Writes, syncs and checks the new file, and renames it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    made = target.with_name(hidden_name(target, f"{UNFINISHED}{secrets.token_hex(8)}"))
    hidden_files.add(made)
    handle = os.open(made, flags, 0o600 if private else 0o666)
    try:
        with open(handle, "w+b") as file:
            _keep_mode(handle, target)
            write(file)
            file.flush()
            os.fsync(handle)
            if check is not None:
                file.seek(0)
                check(file)
        put_in_place(made, target)
        _sync_folder(target.parent)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(made)
        hidden_files.discard(made)


def _kept(target: Path) -> str:
    """The end of an error message: what has become of the old file, if there is one."""
    return "; the old file is as it was" if target.exists() else ""


def _keep_mode(handle: int, target: Path) -> None:
    """Copies the permissions of the replaced file."""
    with contextlib.suppress(OSError, AttributeError):  # Windows cannot
        os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))


def _remove_unfinished(target: Path) -> None:
    """Removes unfinished files that killed writers of the target have left. The caller must hold the target's lock."""
    prefix = hidden_name(target, UNFINISHED)
    with os.scandir(target.parent) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def _sync_folder(folder: Path) -> None:
    """Syncs the folder, so that the rename reaches the disk; skipped where impossible."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
