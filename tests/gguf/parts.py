"""Splits a GGUF file into rows that a test may change, and joins them with correct offsets."""

import struct
from dataclasses import dataclass
from typing import Any

from rwkv_gpu.gguf.formats import SIZES
from tests.gguf.writer import ARRAY, BOOL, LAYOUT, STRING, array_key, gguf, key, number, string, tensor


@dataclass
class Row:
    """One row of metadata: a number, bytes of a string, or the elements of an array."""

    name: bytes
    kind: int
    value: Any
    element: int = 0  # the type of an array's elements


@dataclass
class Stored:
    """One tensor: its row in the table and its bytes."""

    name: bytes
    dims: list[int]  # innermost first
    kind: int
    data: bytes


@dataclass
class Parts:
    """A whole file."""

    rows: list[Row]
    tensors: list[Stored]

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name.encode())

    def set(self, name: str, kind: int, value: Any) -> None:
        """Sets the value of a key, replacing any earlier one."""
        self.rows = [row for row in self.rows if row.name != name.encode()] + [Row(name.encode(), kind, value)]

    def built(self) -> bytes:
        """Returns the file. Data are cut or repeated to the size given by type and dims, up to 8 MiB a tensor."""
        table, data = [], bytearray()
        for one in self.tensors:
            table.append(tensor(one.name, one.dims, len(data), kind=one.kind))
            data += _fitted(one)
            data += bytes(-len(data) % 32)
        return gguf([row_bytes(row) for row in self.rows], table, bytes(data))


def take_apart(data: bytes) -> Parts:
    """Returns the rows and tensors of a valid file."""
    reader = _Reader(data)
    n_tensors, n_rows = struct.unpack_from("<QQ", data, 8)
    rows = [reader.row() for _ in range(n_rows)]
    tensors = [reader.tensor() for _ in range(n_tensors)]
    at = -(-reader.at // 32) * 32
    for one in tensors:
        at = -(-at // 32) * 32
        one.data = data[at : at + nbytes(one)]
        at += nbytes(one)
    return Parts(rows, tensors)


def nbytes(one: Stored) -> int:
    """Returns the bytes of a tensor of this type and these dims; 0 if the type or the size is unknown."""
    size = SIZES.get(one.kind)
    count = 1
    for dim in one.dims:
        count *= dim
    return 0 if size is None else count // size.block * size.nbytes


class _Reader:
    """A reader with a position in a file."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 24

    def take(self, layout: str) -> Any:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values[0] if len(values) == 1 else values

    def text(self) -> bytes:
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size : self.at]

    def value(self, kind: int) -> Any:
        return self.text() if kind == STRING else self.take(LAYOUT[kind])

    def row(self) -> Row:
        name, kind = self.text(), self.take("I")
        if kind != ARRAY:
            return Row(name, kind, self.value(kind))
        element, count = self.take("IQ")
        return Row(name, kind, [self.value(element) for _ in range(count)], element)

    def tensor(self) -> Stored:
        name, count = self.text(), self.take("I")
        dims = [self.take("Q") for _ in range(count)]
        kind, _ = self.take("IQ")
        return Stored(name, dims, kind, b"")


def row_bytes(row: Row) -> bytes:
    """Returns the bytes of one row of metadata."""
    if row.kind == ARRAY:
        return array_key(row.name, row.element, [_value_bytes(row.element, value) for value in row.value])
    return key(row.name, row.kind, _value_bytes(row.kind, row.value))


def _value_bytes(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return string(value)
    return number(kind, bool(value) if kind == BOOL else value)


def _fitted(one: Stored) -> bytes:
    need = min(nbytes(one), 8 << 20)
    source = one.data or bytes(32)
    return (source * -(-need // len(source)))[:need]
