"""A regular file that any thread can read at any offset.

There is no memory map: a file that is cut short raises an error and does not kill the process.
"""

import os
import stat
import threading

from rwkv_gpu.errors import BadFile, printable

MAX_READ = 1 << 30  # macOS refuses a read of 2 GiB or more

KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class Source:
    """An open regular file and its size."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = printable(os.fspath(path))
        try:
            self._must_be_regular(os.stat(path).st_mode)
            self._file = open(path, "rb", buffering=0, opener=_open_without_waiting)  # noqa: SIM115
        except (OSError, ValueError) as error:
            raise BadFile(f"{self.path}: cannot be opened: {_reason(error)}") from error
        try:
            status = os.fstat(self._file.fileno())
            self._must_be_regular(status.st_mode)
        except BaseException:
            self.close()
            raise
        self.nbytes = status.st_size
        self._lock = threading.Lock()

    def _must_be_regular(self, mode: int) -> None:
        if not stat.S_ISREG(mode):
            kind = KINDS.get(stat.S_IFMT(mode), "a special file")
            raise BadFile(f"{self.path}: is {kind}, expected a regular file (a .gguf model)")

    def reopen(self) -> "Source":
        """The same file, opened again. Raises BadFile if another file has taken its place."""
        again = Source(self._file.name)
        if again.nbytes != self.nbytes:
            again.close()
            raise BadFile(
                f"{self.path}: found {again.nbytes} bytes, expected {self.nbytes}; do not replace it while it loads"
            )
        return again

    def close(self) -> None:
        self._file.close()

    def read(self, offset: int, nbytes: int) -> bytes:
        """Reads exactly these bytes."""
        data = bytearray(nbytes)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fills the view from the offset on, or raises BadFile."""
        done, total = 0, len(view)
        while done < total:
            try:
                n = self._read_once(offset + done, view[done : done + MAX_READ])
            except OSError as error:
                raise BadFile(f"{self.path}: cannot be read at byte {offset + done}: {_reason(error)}") from error
            if n == 0:
                raise BadFile(
                    f"{self.path}: truncated while open: found the end of the file at byte {offset + done}, "
                    f"expected {total - done} more bytes"
                )
            done += n

    def _read_once(self, offset: int, view: memoryview) -> int:
        if hasattr(os, "preadv"):
            n: int = os.preadv(self._file.fileno(), [view], offset)
            return n
        with self._lock:  # Windows has no positioned read
            self._file.seek(offset)
            return self._file.readinto(view) or 0


def _open_without_waiting(path: str, flags: int) -> int:
    """Opens without blocking: a pipe may have replaced the file since it was checked."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _reason(error: Exception) -> str:
    """The reason for an error, in the same words on every system. Windows would state it in the user's language."""
    code = error.errno if isinstance(error, OSError) else None
    return os.strerror(code) if code else printable(str(error))
