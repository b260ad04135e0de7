"""A sequence's state in one file: arrays by name, whose model they are of, and a checksum over all.

Layout: magic, the length of a JSON header, the header, the arrays one after the other, SHA-256 of all before it.
A file is written beside its place and moved there whole, so that a full disk or a crash leaves the old one.
"""

import contextlib
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, BadInput
from ..gguf.file import GGUFFile

MAGIC = b"RWKVGPU2"
LENGTH = struct.Struct("<Q")
DIGEST = 32
HEADER_MAX = 1 << 24

Arrays = Mapping[str, npt.NDArray[Any]]


def fingerprint(file: GGUFFile) -> str:
    """What tells models apart: the names, types, shapes and places of all tensors, and the first bytes of each."""
    digest = hashlib.sha256()
    for tensor in file.tensors.values():
        digest.update(repr((tensor.name, tensor.type, tensor.shape, tensor.nbytes)).encode())
        digest.update(file.read(tensor, 0, min(64, tensor.nbytes)))
    return digest.hexdigest()


def save(path: str | os.PathLike[str], model: str, arrays: Arrays, notes: Mapping[str, Any]) -> None:
    """Writes the file, or leaves what was there; `notes` is anything JSON can hold."""
    rows = [{"name": name, "dtype": str(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()]
    header = json.dumps({"model": model, "notes": dict(notes), "arrays": rows}).encode()
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            digest = hashlib.sha256()
            for data in (MAGIC, LENGTH.pack(len(header)), header, *(array.tobytes() for array in arrays.values())):
                file.write(data)
                digest.update(data)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}; the old file is as it was") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def load(path: str | os.PathLike[str], model: str) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and notes; refuses a file that is damaged, or of another model."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadFile(f"{path}: cannot be read: {error.strerror}") from None
    start = len(MAGIC) + LENGTH.size
    if data[: len(MAGIC)] != MAGIC:
        raise BadFile(f"{path}: is not a saved state of rwkv-gpu")
    if len(data) < start + DIGEST or hashlib.sha256(data[:-DIGEST]).digest() != data[-DIGEST:]:
        raise BadFile(f"{path}: is damaged or cut short; the checksum does not agree")
    [length] = LENGTH.unpack_from(data, len(MAGIC))
    header = json.loads(data[start : start + min(length, HEADER_MAX)])
    if header["model"] != model:
        raise BadFile(f"{path}: was saved with another model; load it with that one")
    arrays, at = {}, start + length
    for row in header["arrays"]:
        dtype, shape = np.dtype(row["dtype"]), tuple(row["shape"])
        count = int(np.prod(shape))
        arrays[row["name"]] = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += count * dtype.itemsize
    return arrays, header["notes"]
