"""Writes the header of a GGUF file: metadata and the table of tensors, as `scan` reads them."""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .formats import Format

ALIGNMENT = 32
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9

Value = int | np.int32 | float | str | Sequence[int] | Sequence[float] | Sequence[str]


@dataclass(frozen=True)
class TensorDescription:
    """A tensor that will be written: shape outermost first."""

    name: str
    shape: tuple[int, ...]
    format: Format

    @property
    def nbytes(self) -> int:
        """The size of the tensor's data in bytes."""
        return math.prod(self.shape[:-1]) * self.format.row_bytes(self.shape[-1])


def aligned(nbytes: int) -> int:
    """The offset at which the next tensor starts."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def write_header(
    metadata: Mapping[str, Value], tensors: Sequence[TensorDescription], written: Sequence[bytes] = ()
) -> bytes:
    """A header of version 3, padded to the alignment. The data follow in the same order, each padded too.

    `written` are keys and values as bytes of another header; they come first.
    """
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(written) + len(metadata)), *written]
    parts += [_string(key) + _value(value) for key, value in metadata.items()]
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        parts.append(_string(tensor.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        parts.append(struct.pack("<IQ", tensor.format.type, offset))
        offset = aligned(offset + tensor.nbytes)
    header = b"".join(parts)
    return header.ljust(aligned(len(header)), b"\0")


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<IB", BOOL, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    if isinstance(value, np.int32):
        return struct.pack("<Ii", I32, int(value))
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    count = struct.pack("<Q", len(value))
    if isinstance(value[0], str):
        return struct.pack("<II", ARRAY, STRING) + count + b"".join(_string(str(text)) for text in value)
    if isinstance(value[0], bool):
        return struct.pack("<II", ARRAY, BOOL) + count + bytes(bool(one) for one in value)
    kind, dtype = (F32, "<f4") if isinstance(value[0], float) else (I32, "<i4")
    return struct.pack("<II", ARRAY, kind) + count + np.array(value, dtype).tobytes()
