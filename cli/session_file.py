"""The session file of a chat: locked while the chat is open, and never written over another program's changes."""

import errno
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rwkv_gpu import LLM, Chat
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.chat import load_chats, save_chats
from rwkv_gpu.replace_file import WINDOWS, lock

Stamp = tuple[int, int, int]  # changes when the file is written


class SessionFile:
    """A file that this chat has opened and locked; `close` unlocks it.

    The lock is on the file itself. Each save replaces the file; the new file is locked before the replacement. Windows
    cannot replace open files: there the lock is on a separate file in the same folder, which `close` removes.
    """

    def __init__(self, name: str) -> None:
        """Opens or creates a file before the chat starts. Raises BadInput if no chat can be saved there."""
        self.name = name  # as typed
        self.path = expanded(name)
        self._held: int | None = None  # descriptor that holds the lock
        try:
            _try_folder(Path(os.path.realpath(self.path)).parent)
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if WINDOWS:
                self._held = _locked(_lock_path(self.path), name, os.O_CREAT)
            elif self.path.exists():
                self._held = _locked(self.path, name)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(f"{name}: the chat cannot be saved there: {reason}; give another file") from None
        self._stamp = _stamp(self.path)

    @property
    def exists(self) -> bool:
        """True if the file exists."""
        return self._stamp is not None

    def load(self, llm: LLM) -> tuple[list[Chat], int]:
        """Loads its chats, and the index of the current one."""
        return load_chats(self.path, llm)

    def save(self, chats: Sequence[Chat], current: int) -> None:
        """Writes the chats. Keeps the old file if that fails, or if another program has changed it."""
        if _stamp(self.path) != self._stamp:
            raise BadInput(
                f"{self.name}: another program has changed it since this chat opened it; /save another file to keep "
                "this chat"
            )
        held: list[int] = []
        try:
            save_chats(self.path, chats, current, before_replace=lambda handle: held.append(os.dup(handle)))
        except BaseException:
            for handle in held:
                os.close(handle)
            raise
        if not WINDOWS:
            self.close()
            self._held = held[0] if held else None
        self._stamp = _stamp(self.path)

    def close(self) -> None:
        """Unlocks the file."""
        if self._held is not None:
            os.close(self._held)
            if WINDOWS:
                with suppress(OSError):  # another chat has opened it meanwhile
                    os.unlink(_lock_path(self.path))
        self._held = None

    def remove(self) -> None:
        """Deletes the file, unless another program has changed it."""
        if _stamp(self.path) == self._stamp:
            with suppress(OSError):
                self.path.unlink()

    def is_at(self, path: Path) -> bool:
        """True if a path refers to this file."""
        return os.path.realpath(path) == os.path.realpath(self.path)


def expanded(name: str) -> Path:
    """A file name as typed, with ~ expanded."""
    return Path(os.path.expanduser(name))


def _try_folder(folder: Path) -> None:
    """Checks that a folder is writable, by creating and deleting a file."""
    handle, trial = tempfile.mkstemp(dir=folder, prefix=".rwkv-gpu-")
    os.close(handle)
    os.unlink(trial)


def _lock_path(path: Path) -> Path:
    """The lock file for systems that cannot lock the file itself; the same for all links to the file."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.lock")


def _locked(path: Path, name: str, flags: int = 0) -> int:
    """Opens and locks the file with this name, which another chat may be replacing."""
    while True:
        handle = os.open(path, os.O_RDWR | flags, 0o600)
        if not lock(handle):
            os.close(handle)
            raise BadInput(f"{name}: another chat has it open; leave that one first, or give another file")
        if os.path.samestat(os.fstat(handle), os.stat(path)):
            return handle
        os.close(handle)


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
