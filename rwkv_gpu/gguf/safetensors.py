"""Safetensors files: tensors by name, read strictly. The header is JSON, and the data of all tensors follow it."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, printable

Floats = npt.NDArray[np.float32]
MOST_HEADER = 16 << 20  # bytes
TYPES = {"F32": 4, "F16": 2, "BF16": 2}  # bytes of a number


def is_safetensors(path: Path) -> bool:
    """True if a file begins with the length of a header and a brace."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        head = file.read(9)
    return len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32


def read_safetensors(path: Path, wanted: re.Pattern[str]) -> dict[str, Floats]:
    """The tensors whose whole names match, as float32. Raises BadFile where the file contradicts itself."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, MOST_HEADER):
                raise ValueError(f"its header of {length:,} bytes does not fit")
            header = json.loads(file.read(length))
            if not isinstance(header, dict):
                raise TypeError("its header is no object")
            ranges = {name: _range(one, size - 8 - length) for name, one in header.items() if name != "__metadata__"}
            found = {}
            for name in ranges:
                if wanted.fullmatch(name):
                    start, end = ranges[name]
                    file.seek(8 + length + start)
                    found[name] = _floats(file.read(end - start), header[name])
            return found
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, OSError) as error:
        what = printable(str(error)[:100]) or type(error).__name__
        raise BadFile(f"{path}: is no sound safetensors file ({what}); convert it again") from None


def _range(one: Any, size: int) -> tuple[int, int]:
    """The first byte of a tensor and the one after its last, within the data of `size` bytes."""
    if not isinstance(one, dict):
        raise TypeError("an entry of its header is no object")
    shape, offsets = one["shape"], one["data_offsets"]
    if not all(isinstance(numbers, list) and all(type(n) is int for n in numbers) for numbers in (shape, offsets)):
        raise TypeError("a shape or an offset is no list of whole numbers")
    if len(offsets) != 2 or len(shape) > 8 or min(shape, default=0) < 0 or not 0 <= offsets[0] <= offsets[1] <= size:
        raise ValueError("a tensor is beyond the end of the file")
    width = TYPES.get(one["dtype"])
    if width is not None and math.prod(shape) * width != offsets[1] - offsets[0]:
        raise ValueError("a tensor has another size than its shape says")
    return offsets[0], offsets[1]


def _floats(raw: bytes, one: Any) -> Floats:
    """The numbers of a tensor in its shape."""
    if one["dtype"] not in TYPES:
        raise ValueError(f"its numbers are {one['dtype']}; known: {', '.join(TYPES)}")
    if one["dtype"] == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(one["shape"])
    kind = "<f4" if one["dtype"] == "F32" else "<f2"
    return np.frombuffer(raw, kind).astype(np.float32).reshape(one["shape"])
