"""Reads a GGUF header from start to end. No length or count may ask for more bytes than the file has left.

It knows how values are encoded (numbers, strings, arrays), not what they mean.
"""

import struct
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rwkv_gpu.errors import BadFile, printable

from .source import Source

Numbers: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = int | float | str | bool | Numbers | list[str]

HEADER_MAX = 64 << 20  # the largest known headers (vocabularies of 260k tokens with merges) are near 16 MiB
WINDOW = 1 << 20

BOOL, STRING, ARRAY = 7, 8, 9
NUMBERS: dict[int, np.dtype[Any]] = {  # value type: its layout in the file
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
SMALLEST = {kind: dtype.itemsize for kind, dtype in NUMBERS.items()} | {STRING: 8, ARRAY: 12}  # bytes

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


def shown(value: Any) -> str:
    """A value from the file as an error message may show it: short, quoted, on one line."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype.name}"
    if isinstance(value, list):
        return f"an array of {len(value)} strings"
    if isinstance(value, bytes):
        value = value[:200].decode("utf-8", "backslashreplace")
    return f"'{printable(value, 60)}'" if isinstance(value, str) else repr(value)


class Cursor:
    """A read position in a file's header. It moves forward through windows of bounded size, and never past the end."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._end = min(source.nbytes, HEADER_MAX)
        self._window = b""
        self._start = 0  # start of the window in the file
        self._at = 0  # position in the window

    @property
    def pos(self) -> int:
        """The offset in the file of the next byte."""
        return self._start + self._at

    @property
    def left(self) -> int:
        return self._end - self.pos

    def bad(self, what: str, at: int, found: str, expected: str) -> BadFile:
        """The error for bad data. All errors have this form: what, where, what was found, what was expected."""
        return BadFile(f"{self._source.path}: {what} at byte {at}: found {found}, expected {expected}")

    def take(self, nbytes: int, what: str) -> bytes:
        """The next bytes."""
        if nbytes > self.left:
            raise self.bad(what, self.pos, f"{self.left} of its {nbytes} bytes", f"all: {self._remedy()}")
        if self._at + nbytes > len(self._window):
            self._start, self._at = self.pos, 0
            self._window = self._source.read(self._start, min(max(nbytes, WINDOW), self.left))
        at, self._at = self._at, self._at + nbytes
        return self._window[at : self._at]

    def _remedy(self) -> str:
        if self._end < self._source.nbytes:
            return f"a header has up to {HEADER_MAX >> 20} MiB"
        return "cut short or damaged, download it again"

    def u32(self, what: str) -> int:
        return int(U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack(self.take(8, what))[0])

    def count(self, what: str, smallest: int) -> int:
        """A count of items of at least `smallest` bytes each. Refused if the rest of the file is too short for them."""
        at, n = self.pos, self.u64(what)
        if n * smallest > self.left:
            room = f"at most {self.left // smallest} in the {self.left} bytes left: {self._remedy()}"
            raise self.bad(what, at, str(n), room)
        return n

    def string(self, what: str) -> str:
        """A length and as many bytes of UTF-8."""
        size = self.count(f"the length of {what}", 1)
        at, data = self.pos, self.take(size, what)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.bad(what, at + error.start, shown(data[error.start :][:8]), f"UTF-8 ({error.reason})") from None

    def name(self, what: str, most: int) -> str:
        """A printable string of 1 to `most` bytes."""
        at, name = self.pos, self.string(what)
        if not 1 <= len(name.encode()) <= most:
            raise self.bad(what, at, f"{len(name.encode())} bytes: {shown(name)}", f"1 to {most} bytes")
        if not name.isprintable():
            raise self.bad(what, at, shown(name), "a name of printable characters")
        return name

    def value(self, what: str, kind: int) -> Value:
        """A metadata value of the given type."""
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self.array(what)
        value: Value = self.numbers(what, kind, 1)[0].item()
        return value

    def kind(self, what: str) -> int:
        """A value type, one of the thirteen."""
        at, kind = self.pos, self.u32(what)
        if kind not in SMALLEST:
            raise self.bad(what, at, str(kind), "one of the value types 0 to 12")
        return kind

    def array(self, what: str) -> Value:
        """A type, a count and the elements: numbers as a numpy array, strings as a list."""
        at, kind = self.pos, self.kind(f"the element type of {what}")
        if kind == ARRAY:
            raise self.bad(f"the element type of {what}", at, "an array of arrays", "numbers or strings")
        count = self.count(f"the element count of {what}", SMALLEST[kind])
        return self.strings(what, count) if kind == STRING else self.numbers(what, kind, count)

    def numbers(self, what: str, kind: int, count: int) -> Numbers:
        """Numbers of one type."""
        at, dtype = self.pos, NUMBERS[kind]
        values: Numbers = np.frombuffer(self.take(count * dtype.itemsize, what), dtype)
        if kind != BOOL:
            return values
        wrong = np.flatnonzero(values > 1)
        if wrong.size:
            raise self.bad(what, at + int(wrong[0]), f"a bool of {values[wrong[0]]}", "0 or 1")
        return values.view(np.bool_)

    def strings(self, what: str, count: int) -> list[str]:
        """Many strings: in bulk if they lie completely inside the window, else one by one."""
        strings: list[str] = []
        while len(strings) < count:
            strings.append(self.string(f"string {len(strings)} of {what}"))
            strings += self._strings_in_window(count - len(strings))
        return strings

    def _strings_in_window(self, most: int) -> list[str]:
        """Stops before a string that is cut off or not UTF-8; `string` then reads it or reports the error."""
        window, at, last = self._window, self._at, len(self._window) - 8
        strings: list[str] = []
        while len(strings) < most and at <= last:
            end = at + 8 + U64.unpack_from(window, at)[0]
            if end > len(window):
                break
            try:
                strings.append(window[at + 8 : end].decode())
            except UnicodeDecodeError:
                break
            at = end
        self._at = at
        return strings
