"""Writes GGUF files of a few hundred bytes, with a wrong value in any chosen field."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)

LAYOUT = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d",
}  # fmt: skip


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def string(text: str | bytes, length: int | None = None) -> bytes:
    """Returns a string in GGUF's form, or one with a false length."""
    data = text.encode() if isinstance(text, str) else text
    return u64(len(data) if length is None else length) + data


def number(kind: int, value: float) -> bytes:
    return struct.pack("<" + LAYOUT[kind], value)


def key(name: str | bytes, kind: int, payload: bytes) -> bytes:
    """Returns one metadata row."""
    return string(name) + u32(kind) + payload


def text_key(name: str | bytes, text: str | bytes) -> bytes:
    return key(name, STRING, string(text))


def number_key(name: str | bytes, kind: int, value: float) -> bytes:
    return key(name, kind, number(kind, value))


def array_key(name: str | bytes, kind: int, elements: Sequence[bytes], count: int | None = None) -> bytes:
    """Returns a row with an array, or with a false count."""
    return key(name, ARRAY, u32(kind) + u64(len(elements) if count is None else count) + b"".join(elements))


def tensor(name: str | bytes, dims: Sequence[int], offset: int = 0, kind: int = 0, n_dims: int | None = None) -> bytes:
    """Returns one row of the tensor table. The innermost dim comes first, as in ggml."""
    count = u32(len(dims) if n_dims is None else n_dims)
    return string(name) + count + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Returns a whole file: header, metadata, tensor table, padding, data."""
    counts = u64(len(tensors) if n_tensors is None else n_tensors) + u64(len(keys) if n_keys is None else n_keys)
    head = magic + u32(version) + counts + b"".join(keys) + b"".join(tensors)
    return head + (bytes(-len(head) % alignment) + data if tensors else b"")


def with_keys(data: bytes, rows: Sequence[bytes]) -> bytes:
    """Returns a file with more metadata. Padding keeps its tensors aligned."""
    added = b"".join(rows)
    filler = text_key("filler", "." * (-len(added + text_key("filler", "")) % 32))
    count = u64(struct.unpack_from("<Q", data, 16)[0] + len(rows) + 1)
    return data[:16] + count + added + filler + data[24:]


def written(folder: Path, data: bytes) -> Path:
    """Writes the data as a file."""
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


def sparse(front: bytes, folder: Path) -> Path:
    """Writes the data, followed by zeros up to 1 TiB."""
    path = folder / "model.gguf"
    with path.open("wb") as file:
        file.write(front)
        file.truncate(1 << 40)
    return path


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "model.gguf")
    return folder / "model.gguf"


def split(
    folder: Path,
    counts: tuple[int, ...] = (3, 3, 3),
    numbers: tuple[int, ...] = (0, 1, 2),
    names: str = "abc",
    total: int = 3,
    without: int = 0,
    spoilt: int = -1,
    stem: str = "model-%05d-of-00003",
) -> Path:
    """Writes a model in three parts of one tensor each. Returns the first part."""
    paths = [folder / f"{stem % (i + 1) if '%' in stem else stem + str(i)}.gguf" for i in range(3)]
    for i, path in enumerate(paths):
        rows = [
            number_key("split.no", U16, numbers[i]),
            number_key("split.count", U16, counts[i]),
            number_key("split.tensors.count", I32, total),
        ]
        data = gguf(rows, [tensor(names[i], [8])], bytes([i] * 32))
        if i + 1 != without:
            path.write_bytes(b"nothing" if i == spoilt else data)
    return paths[0]


def plain(value: Any) -> Any:
    """Converts a metadata value to one that compares with ==."""
    return value.tolist() if isinstance(value, np.ndarray) else value
