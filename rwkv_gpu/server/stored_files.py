"""Files that clients upload, and results of batches: in memory, limited in size, visible to their owner only."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rwkv_gpu.llm.unique import unique

from .errors import ApiError

MOST = 1024  # files of a key
MAX_BYTES = 64 << 20  # size limit for the files of a key
MAX_OF_ALL = 16384
MAX_BYTES_OF_ALL = 256 << 20
KEPT = 7 * 24 * 3600  # seconds until a file is removed


@dataclass(eq=False)
class File:
    """A file. It grows while a batch writes it, and is listed once it is complete."""

    owner: bytes
    filename: str
    purpose: str
    listed: bool = True
    id: str = field(default_factory=lambda: f"file-{unique()}")
    created: float = field(default_factory=time.time)
    pieces: list[bytes] = field(default_factory=list)
    nbytes: int = 0

    @property
    def content(self) -> bytes:
        """All bytes."""
        return b"".join(self.pieces)


class StoredFiles:
    """The files of all keys. A file is visible to its owner only."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._found: dict[str, File] = {}
        self._nbytes: Counter[bytes] = Counter()  # size of all files, by owner

    def add(self, file: File, content: bytes = b"") -> File:
        """Stores a file; refuses it if there is no room."""
        self._expire()
        if len(self._of(file.owner)) >= MOST or len(self._found) >= MAX_OF_ALL:
            raise ApiError(
                413,
                f"a key may have {MOST:,} files, and all keys together {MAX_OF_ALL:,}; delete some",
                code="no_room",
            )
        self._found[file.id] = file
        try:
            self.append(file, content)
        except ApiError:
            del self._found[file.id]
            raise
        return file

    def append(self, file: File, piece: bytes) -> None:
        """Writes to the end of a file."""
        mine, everything = self._nbytes[file.owner], self._nbytes.total()
        if mine + len(piece) > MAX_BYTES or everything + len(piece) > MAX_BYTES_OF_ALL:
            raise ApiError(413, f"files may take {MAX_BYTES:,} bytes for each key; delete some", code="no_room")
        file.pieces.append(piece)
        file.nbytes += len(piece)
        if file.id in self._found:
            self._nbytes[file.owner] += len(piece)

    def get(self, id: str, owner: bytes, param: str | None = None) -> File:
        """The file with that id."""
        self._expire()
        found = self._found.get(id)
        if found is None or found.owner != owner or not found.listed:
            raise ApiError(404 if param is None else 400, f"there is no file {id[:80]!r} here", param=param)
        return found

    def listed(self, owner: bytes) -> list[File]:
        """The files of a key, latest first."""
        self._expire()
        return [file for file in reversed(self._of(owner)) if file.listed]

    def delete(self, file: File) -> None:
        """Removes a file."""
        if self._found.pop(file.id, None) is not None:
            self._nbytes[file.owner] -= file.nbytes
            self._nbytes = +self._nbytes  # drops owners without bytes
        file.pieces, file.nbytes = [], 0  # a batch may still refer to it

    def _of(self, owner: bytes) -> list[File]:
        return [file for file in self._found.values() if file.owner == owner]

    def _expire(self) -> None:
        before = self._clock() - KEPT
        for file in [one for one in self._found.values() if one.created < before]:
            self.delete(file)
