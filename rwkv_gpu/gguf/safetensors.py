"""Safetensors files: tensors by name, read strictly. The header is JSON, and the data of all tensors follow it."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from ..errors import BadFile, printable
from .stored import WIDTHS, Floats, Stored

MAX_HEADER = 16 << 20  # bytes


def is_safetensors(path: Path) -> bool:
    """True if a file begins with the length of a header and a brace."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        head = file.read(9)
    return len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32


def read_safetensors(path: Path, wanted: re.Pattern[str]) -> dict[str, Floats]:
    """The tensors whose names match completely, as float32. Raises BadFile if the file contradicts itself."""
    found = stored_in_safetensors(path)
    try:
        return {name: tensor.read() for name, tensor in found.items() if wanted.fullmatch(name)}
    except ValueError as error:
        raise _unsound(path, error) from None


def stored_in_safetensors(path: Path) -> dict[str, Stored]:
    """All tensors of a file, unread. Raises BadFile if the file contradicts itself."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, MAX_HEADER):
                raise ValueError(f"its header of {length:,} bytes does not fit")
            header = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise TypeError("its header is not an object")
        return {
            name: _stored(path, 8 + length, one, size - 8 - length)
            for name, one in header.items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, OSError) as error:
        raise _unsound(path, error) from None


def _unsound(path: Path, error: Exception) -> BadFile:
    what = printable(str(error)[:100]) or type(error).__name__
    return BadFile(f"{path}: is not a valid safetensors file ({what}); convert it again")


def _stored(path: Path, start: int, one: Any, size: int) -> Stored:
    """The tensor of an entry, within the `size` bytes of data from `start` on."""
    if not isinstance(one, dict):
        raise TypeError("an entry of its header is not an object")
    shape, offsets, kind = one["shape"], one["data_offsets"], one["dtype"]
    if not all(isinstance(numbers, list) and all(type(n) is int for n in numbers) for numbers in (shape, offsets)):
        raise TypeError("a shape or an offset is not a list of whole numbers")
    if len(offsets) != 2 or len(shape) > 8 or min(shape, default=0) < 0 or not 0 <= offsets[0] <= offsets[1] <= size:
        raise ValueError("a tensor is beyond the end of the file")
    width = WIDTHS.get(kind)
    if width is not None and math.prod(shape) * width != offsets[1] - offsets[0]:
        raise ValueError("a tensor has another size than its shape says")
    return Stored(path, start + offsets[0], str(kind), tuple(shape))
