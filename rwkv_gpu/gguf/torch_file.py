"""Files of torch.save: tensors by name, without torch, and without running code from the file.

The file is a zip: a pickle of a dict of tensors, and the data of each storage as a separate file. The pickle may
only call functions in CALLS. Python's own unpickler is used; its memory is bounded by the length of the pickle.
"""

import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from ..errors import BadFile, printable
from .stored import WIDTHS, Floats, Stored

MAX_PICKLED = 4 << 20  # bytes of the pickled dict, without the data
LOCAL_HEADER = 30  # bytes, before the name
BROKEN = (
    pickle.UnpicklingError, zipfile.BadZipFile, struct.error, EOFError, KeyError, IndexError, ValueError, TypeError,
    AttributeError, OverflowError, NotImplementedError, RecursionError, OSError, RuntimeError,
)  # fmt: skip
STORAGES = {"FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16"}  # number types by torch class


def is_torch_file(path: Path) -> bool:
    """True if a file is a zip, as torch writes it."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PK\3\4"


def read_torch_file(path: Path) -> dict[str, Floats]:
    """All tensors as float32."""
    return {name: tensor.read() for name, tensor in stored_in_torch_file(path).items()}


def stored_in_torch_file(path: Path) -> dict[str, Stored]:
    """All tensors, unread. Raises BadFile if the file holds more than tensors, or contradicts itself."""
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                raise ValueError("it is compressed")
            [name] = [one for one in archive.namelist() if one.rpartition("/")[2] == "data.pkl"]
            pickled = archive.getinfo(name).file_size
            if pickled > min(size, MAX_PICKLED):
                raise ValueError("its dict is too large")
            found = _Unpickler(path, archive, name.rpartition("/")[0]).load()
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
            raise TypeError("is not a dict")
        return {key: _checked(value, path) for key, value in found.items()}
    except BROKEN as error:
        what = printable(str(error)[:100]) or type(error).__name__
        raise BadFile(f"{path}: is not a dict of tensors of torch.save ({what}); save it again") from None


@dataclass(frozen=True)
class _Numbers:
    """A storage: the range of its bytes in the file."""

    type: str
    start: int
    nbytes: int


@dataclass(frozen=True)
class _Tensor:
    """A part of a storage."""

    numbers: _Numbers
    offset: int
    shape: tuple[int, ...]


def _tensor(numbers: _Numbers, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> _Tensor:
    """Implements torch's _rebuild_tensor_v2."""
    rows = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
    if any(size > 1 and step != row for size, step, row in zip(shape, strides, rows, strict=True)):
        raise ValueError("a tensor is not contiguous")
    return _Tensor(numbers, offset, shape)


def _checked(value: Any, path: Path) -> Stored:
    """A tensor that is within its storage."""
    if not isinstance(value, _Tensor) or not isinstance(value.numbers, _Numbers):
        raise TypeError("it holds more than tensors")
    width = WIDTHS[value.numbers.type]
    if not all(type(n) is int for n in (value.offset, *value.shape)):
        raise TypeError("a shape or an offset is not a whole number")
    if min([value.offset, *value.shape]) < 0 or (value.offset + math.prod(value.shape)) * width > value.numbers.nbytes:
        raise ValueError("a tensor is longer than its numbers")
    return Stored(path, value.numbers.start + value.offset * width, value.numbers.type, tuple(value.shape))


CALLS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda value, *_: value,
    **{("torch", storage): kind for storage, kind in STORAGES.items()},
}


class _Unpickler(pickle._Unpickler):
    """An unpickler that calls only functions in CALLS, and finds storages in the archive."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, folder: str) -> None:
        self._path, self._archive, self._folder = path, archive, folder
        self._numbers: dict[str, _Numbers] = {}
        super().__init__(BytesIO(archive.read(self._inside("data.pkl"))))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in CALLS:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return CALLS[module, name]

    def persistent_load(self, pid: Any) -> _Numbers:
        _, kind, key, *_ = pid
        if kind not in WIDTHS:
            raise TypeError("its numbers are of another type than float32, float16 and bfloat16")
        if key not in self._numbers:
            self._numbers[key] = _Numbers(kind, *self._range(self._inside(f"data/{key}")))
        return self._numbers[key]

    def _range(self, name: str) -> tuple[int, int]:
        """The first byte of an uncompressed file in the archive, and its length."""
        info = self._archive.getinfo(name)
        with open(self._path, "rb") as file:
            file.seek(info.header_offset)
            magic, lengths = struct.unpack("<4s22x4s", file.read(LOCAL_HEADER))
        start = info.header_offset + LOCAL_HEADER + sum(struct.unpack("<2H", lengths))
        if magic != b"PK\3\4" or start + info.file_size > self._path.stat().st_size:
            raise ValueError("a storage is beyond the end of the file")
        return start, info.file_size

    def _inside(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name
