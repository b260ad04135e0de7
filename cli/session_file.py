"""The session file of a chat: locked while the chat is open. It never overwrites changes by another program."""

import errno
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from rwkv_gpu import LLM, Chat
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.chat import load_chats, save_chats
from rwkv_gpu.writer_lock import WriterLock

Stamp = tuple[int, int, int]  # changes when the file is written


class SessionFile:
    """A file that this chat has opened and locked; `close` unlocks it."""

    def __init__(self, name: str, *, half_state: bool = False) -> None:
        """Opens or creates a file before the chat starts. Raises BadInput if a chat cannot be saved there."""
        self._half_state = half_state
        self.name = name  # the name as typed
        self.path = expanded(name)
        try:
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._lock = WriterLock(self.path)
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
        save_chats(self.path, chats, current, lock=self._lock, half_state=self._half_state)
        self._stamp = _stamp(self.path)

    def close(self) -> None:
        """Unlocks the file."""
        self._lock.close()

    def remove(self) -> None:
        """Deletes the file, unless another program has changed it."""
        if _stamp(self.path) == self._stamp:
            with suppress(OSError):
                self.path.unlink()

    def is_at(self, path: Path) -> bool:
        """True if a path refers to this file."""
        return os.path.realpath(path) == os.path.realpath(self.path)


def expanded(name: str) -> Path:
    """A file name as typed, with ~ expanded, or as terminals write that of a dropped file."""
    return Path(os.path.expanduser(name if os.path.exists(name) else _unquoted(name)))


def _unquoted(name: str) -> str:
    """The name without the quotes and escapes of a shell, or that of a file:/// address."""
    if len(name) > 1 and name[0] == name[-1] and name[0] in "'\"":
        name = name[1:-1].replace(r"'\''", "'")
    elif os.name != "nt":
        name = re.sub(r"\\(\W)", r"\1", name)
    return unquote(name.removeprefix("file://")) if name.startswith("file:///") else name


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
