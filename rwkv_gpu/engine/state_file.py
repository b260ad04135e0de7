"""A file of arrays and notes, with the identity of their model and a checksum.

Layout: magic, length of a JSON header, header, notes as JSON, arrays in sequence, and the SHA-256 of all bytes before
it. The header holds only lengths, so texts of any size are stored outside it.

Written data is read back before the old file is replaced. Files of the older layout, with notes in the header, can
still be read.
"""

import hashlib
import io
import json
import math
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, printable
from ..gguf.file import GGUFFile
from ..replace_file import Unreadable, replace_file
from ..writer_lock import WriterLock

OLD_MAGIC, MAGIC = b"RWKVGPU2", b"RWKVGPU3"
LENGTH = struct.Struct("<Q")
START = len(MAGIC) + LENGTH.size
DIGEST = 32
PIECE = 1 << 20  # bytes read at a time
MAX_TEXT = 1 << 29  # bytes of a header, and of notes

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ModelId:
    """Identifies a model: a quick fingerprint, and the digest of the whole file if known."""

    fingerprint: str
    digest: str | None = None


@dataclass(frozen=True)
class Saved:
    """The contents of a state file."""

    model: ModelId
    arrays: Arrays
    notes: dict[str, Any]


def fingerprint(file: GGUFFile) -> str:
    """Quick hash of a model: names, types, shapes and sizes of all tensors, the first bytes of each, replaced keys."""
    digest = hashlib.sha256()
    for tensor in file.tensors.values():
        digest.update(repr((tensor.name, tensor.type, tensor.shape, tensor.nbytes)).encode())
        digest.update(file.read(tensor, 0, min(64, tensor.nbytes)))
    if file.overridden:
        digest.update(repr(sorted(file.overridden.items())).encode())
    return digest.hexdigest()


# ---------------------------------------------------------------- writing


def save(
    path: str | os.PathLike[str],
    model: ModelId,
    arrays: Arrays,
    notes: Mapping[str, Any],
    *,
    lock: WriterLock | None = None,
) -> None:
    """Writes the file, or leaves the old one unchanged. `notes` is anything that JSON can represent.

    `lock` is that of a caller who has already locked the file.
    """
    replace_file(
        path,
        write=lambda file: _write(file, model, arrays, notes),
        check=lambda file: _read(file, keep=False),
        lock=lock,
    )


def dumps(model: ModelId, arrays: Arrays, notes: Mapping[str, Any]) -> bytes:
    """Returns what `save` would write, as bytes."""
    file = io.BytesIO()
    _write(file, model, arrays, notes)
    return file.getvalue()


def _write(file: BinaryIO, model: ModelId, arrays: Arrays, notes: Mapping[str, Any]) -> None:
    text = _json(dict(notes))
    rows = [{"name": name, "dtype": str(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()]
    ids = {"fingerprint": model.fingerprint, "digest": model.digest}
    header = json.dumps({"model": ids, "notes": len(text), "arrays": rows}).encode()
    digest = hashlib.sha256()
    for data in (MAGIC, LENGTH.pack(len(header)), header, text, *map(_bytes, arrays.values())):
        file.write(data)
        digest.update(data)
    file.write(digest.digest())


def _json(value: object) -> bytes:
    """JSON in UTF-8. Bytes that form no characters are escaped, so that any program can read them."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def _bytes(array: npt.NDArray[Any]) -> Any:
    """The bytes of an array as a buffer, copied only if they are not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


# ---------------------------------------------------------------- reading


def load(path: str | os.PathLike[str], model: str | None = None, shared: str | None = None) -> Saved:
    """Reads a file that `save` wrote; raises BadFile if it is damaged.

    If its model is not `model`, it omits the arrays, except those whose names begin with `shared`.
    """
    name = printable(os.fspath(path))
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            reason = "Is a directory" if os.path.isdir(path) else "it is not a file"
            raise BadFile(f"{name}: cannot be read: {reason}")
        with open(path, "rb") as file:
            saved = _read(file, keep=True, fingerprint=model, shared=shared)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadFile(f"{name}: cannot be read: {reason}") from None
    except Unreadable as error:
        raise BadFile(f"{name}: {error}") from None
    return saved


def loads(data: bytes, name: str = "a stored state", model: str | None = None, shared: str | None = None) -> Saved:
    """Reads what `dumps` returned, like `load`; `name` is what errors call it."""
    try:
        return _read(io.BytesIO(data), keep=True, fingerprint=model, shared=shared)
    except Unreadable as error:
        raise BadFile(f"{name} {error}") from None


def _read(file: BinaryIO, *, keep: bool, fingerprint: str | None = None, shared: str | None = None) -> Saved:
    """Checks a whole file, and returns its arrays if `keep` is set.

    Allocates no more than the file's size. If a fingerprint is given, reads no arrays of a model with another one,
    except those whose names begin with `shared`.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    digest = hashlib.sha256()
    start = file.read(START)
    magic = start[: len(MAGIC)]
    if magic not in (OLD_MAGIC, MAGIC):
        raise Unreadable("is not a saved state of rwkv-gpu")
    digest.update(start)
    [length] = LENGTH.unpack_from(start.ljust(START, b"\xff"), len(MAGIC))
    if START + length + DIGEST > size or length > MAX_TEXT:
        raise Unreadable(_CUT)
    header = _object(_take(file, length, digest))
    if magic == OLD_MAGIC:
        model, notes, after = ModelId(_text(header.get("model"))), header.get("notes"), START + length
    else:
        model, after = _model(header.get("model")), START + length + _count(header.get("notes"))
        if after + DIGEST > size or after - START - length > MAX_TEXT:
            raise Unreadable(_CUT)
        notes = _object(_take(file, after - START - length, digest))
    if not isinstance(notes, dict):
        raise Unreadable(_CUT)
    same = fingerprint in (None, model.fingerprint)
    arrays = {}
    for name, dtype, shape in _rows(header.get("arrays"), size - after - DIGEST):
        kept = keep and (same or (shared is not None and name.startswith(shared)))
        data = _take(file, math.prod(shape) * dtype.itemsize, digest, keep=kept)
        if kept:
            arrays[name] = np.frombuffer(data, dtype).reshape(shape) if data else np.empty(shape, dtype)
    if file.read() != digest.digest():
        raise Unreadable(_CUT)
    return Saved(model, arrays, notes)


_CUT = "is damaged or cut short; its parts or its checksum do not agree"


def _take(file: BinaryIO, nbytes: int, digest: "hashlib._Hash", *, keep: bool = True) -> bytearray:
    """The next bytes of a file; empty if they are only checked."""
    data = bytearray(nbytes if keep else PIECE)
    view, at = memoryview(data), 0
    while at < nbytes:
        part = view[at : at + PIECE] if keep else view[: min(nbytes - at, PIECE)]
        got = file.readinto(part)  # type: ignore[attr-defined]
        if not got:
            raise Unreadable(_CUT)
        digest.update(part[:got])
        at += got
    return data if keep else bytearray()


def _object(data: bytes | bytearray) -> dict[str, Any]:
    """Parses a JSON object."""
    try:
        value = json.loads(bytes(data).decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise Unreadable(_CUT) from None
    if not isinstance(value, dict):
        raise Unreadable(_CUT)
    return value


def _rows(rows: Any, nbytes: int) -> Iterator[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    """Yields name, type and shape of every array; their total size must be `nbytes`."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Unreadable(_CUT)
    left, names = nbytes, set()
    for row in rows:
        name, dtype, shape = _text(row.get("name")), DTYPES.get(str(row.get("dtype"))), row.get("shape")
        if dtype is None or not isinstance(shape, list) or len(shape) > 16 or name in names:
            raise Unreadable(_CUT)
        sizes = tuple(_count(one) for one in shape)
        left -= math.prod(sizes) * dtype.itemsize
        if left < 0:
            raise Unreadable(_CUT)
        names.add(name)
        yield name, dtype, sizes
    if left:
        raise Unreadable(_CUT)


DTYPES = {
    name: np.dtype(name)
    for name in (
        "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
    )
}  # fmt: skip


def _model(value: Any) -> ModelId:
    if not isinstance(value, dict) or not isinstance(value.get("digest"), str | None):
        raise Unreadable(_CUT)
    return ModelId(_text(value.get("fingerprint")), value.get("digest"))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unreadable(_CUT)
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise Unreadable(_CUT)
    return value
