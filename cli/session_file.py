"""The file that a chat is kept in: locked while the chat has it open, and never written over another program's."""

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

Stamp = tuple[int, int, int]  # what changes when somebody writes the file


class SessionFile:
    """A file that this chat has opened and locked; `close` unlocks it.

    The lock lies on the file itself. Each save replaces the file, and the new one is locked before it takes its place.
    Windows replaces no file that is open: there it lies on a file beside it, which `close` removes.
    """

    def __init__(self, name: str) -> None:
        """Opens a file, or the place for a new one, before anything is said. BadInput where no chat can be kept."""
        self.name = name  # as it was typed
        self.path = expanded(name)
        self._held: int | None = None  # a descriptor with the lock
        try:
            _try_folder(Path(os.path.realpath(self.path)).parent)
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if WINDOWS:
                self._held = _locked(_beside(self.path), name, os.O_CREAT)
            elif self.path.exists():
                self._held = _locked(self.path, name)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(f"{name}: the chat cannot be saved there: {reason}; give another file") from None
        self._stamp = _stamp(self.path)

    @property
    def exists(self) -> bool:
        """Whether the file exists."""
        return self._stamp is not None

    def load(self, llm: LLM) -> tuple[list[Chat], int]:
        """The chats in it, and the number of the current one."""
        return load_chats(self.path, llm)

    def save(self, chats: Sequence[Chat], current: int) -> None:
        """Writes the chats. The old file stays where that fails, or where another program has written to it."""
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
        """Unlocks it."""
        if self._held is not None:
            os.close(self._held)
            if WINDOWS:
                with suppress(OSError):  # another chat has opened it meanwhile
                    os.unlink(_beside(self.path))
        self._held = None

    def remove(self) -> None:
        """Deletes the file, unless another program has changed it."""
        if _stamp(self.path) == self._stamp:
            with suppress(OSError):
                self.path.unlink()

    def is_at(self, path: Path) -> bool:
        """Whether a path leads to this file."""
        return os.path.realpath(path) == os.path.realpath(self.path)


def expanded(name: str) -> Path:
    """A file name as it was typed, with ~ as the user's folder."""
    return Path(os.path.expanduser(name))


def _try_folder(folder: Path) -> None:
    """Creates a file in a folder and deletes it."""
    handle, trial = tempfile.mkstemp(dir=folder, prefix=".rwkv-gpu-")
    os.close(handle)
    os.unlink(trial)


def _beside(path: Path) -> Path:
    """What is locked where a file itself cannot be: the same one by whatever links lead to it."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.lock")


def _locked(path: Path, name: str, flags: int = 0) -> int:
    """A descriptor that locks the file of this name, which another chat may be replacing just now."""
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
