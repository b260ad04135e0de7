"""Importance matrices of llama.cpp's `llama-imatrix`: how much an error in each column of a matrix counts.

Reads both kinds of files: GGUF, and the older binary one.
"""

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import BadFile
from .file import GGUFFile

Floats = npt.NDArray[np.float32]
SUMS, COUNTS = ".in_sum2", ".counts"
MOST = 1 << 16  # entries, and bytes of a name
MAX_BYTES = 2 << 30  # maximum bytes of a file: more than any model has


def read_imatrix(path: Path) -> Mapping[str, Floats]:
    """The importance of columns by tensor name, [matrices, width]; a tensor of experts has several matrices."""
    try:
        with open(path, "rb") as file:
            head = file.read(4)
    except OSError as error:
        raise BadFile(f"{path}: cannot be opened: {error.strerror}") from None
    found = _from_gguf(path) if head == b"GGUF" else _from_binary(path)
    for name, values in found.items():
        if not np.isfinite(values).all() or (values < 0).any():
            raise BadFile(f"{path}: the importance of {name} has numbers that are negative, infinite or NaN")
    return found


def _from_gguf(path: Path) -> dict[str, Floats]:
    with GGUFFile.open(path) as file:
        if file.str("general.type", default="") != "imatrix":
            raise BadFile(f"{path}: general.type is not 'imatrix'; give a file that llama-imatrix has written")
        found, room = {}, MAX_BYTES
        for name, tensor in file.tensors.items():
            counted = file.tensors.get(name.removesuffix(SUMS) + COUNTS)
            if not name.endswith(SUMS):
                continue
            if tensor.type != 0 or counted is None or counted.type != 0:
                raise BadFile(f"{path}: {name} needs float32 and its {COUNTS}; measure the imatrix again")
            room = _room(path, room, tensor.nbytes + counted.nbytes)
            sums = np.frombuffer(file.read(tensor), np.float32).reshape(-1, tensor.shape[-1])
            counts = np.frombuffer(file.read(counted), np.float32)
            if counts.size != len(sums):
                raise BadFile(f"{path}: {name} has {len(sums)} matrices and {counts.size} counts")
            # For an expert without tokens, all columns are equally important.
            found[name.removesuffix(SUMS)] = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], 1)
    return {name: values.astype(np.float32) for name, values in found.items()}


def _from_binary(path: Path) -> dict[str, Floats]:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)

        def some(count: int, what: str, most: int = MAX_BYTES) -> bytes:
            at = file.tell()
            most = min(size - at, most)
            if not 0 < count <= most:
                raise BadFile(f"{path}: {what} at byte {at} has {count} bytes, expected 1 to {most}")
            return file.read(count)

        def number() -> int:
            if file.tell() + 4 > size:
                raise BadFile(f"{path}: ends at byte {size} in the middle of an entry, or is not an imatrix file")
            return int(struct.unpack("<i", file.read(4))[0])

        entries = number()
        if not 0 < entries <= MOST:
            raise BadFile(f"{path}: has {entries} entries, expected 1 to {MOST}: it is not an imatrix file")
        found, room = {}, MAX_BYTES
        for _ in range(entries):
            name = some(number(), "a name", MOST).decode("utf-8", "replace")
            calls = number()
            values = np.frombuffer(some(4 * number(), f"the importance of {name}"), "<f4")
            room = _room(path, room, values.nbytes)
            found[name] = (values / max(calls, 1)).reshape(1, -1).astype(np.float32)
    return found


def _room(path: Path, room: int, nbytes: int) -> int:
    """The bytes that may still be read after `more` bytes."""
    if nbytes > room:
        raise BadFile(f"{path}: has more than {MAX_BYTES:,} bytes of importance; it is not an imatrix file")
    return room - nbytes
