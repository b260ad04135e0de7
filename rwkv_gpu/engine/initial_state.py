"""A tuned initial state: what a recurrent model begins each text with instead of zeros (state tuning).

A GGUF file with `general.type` adapter and `adapter.type` state holds tensors with the names of the model's states,
such as `blk.0.wkv` [heads, value, key]. A torch.save file, as written by tuning programs for RWKV, holds the same
matrices as `blocks.0.att.time_state`; a safetensors file of web-rwkv (.st, .state) has them transposed. States that
the file lacks begin as zeros.
"""

import hashlib
import math
import pickle
import re
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, BadInput, printable
from ..gguf.file import GGUFFile
from ..gguf.safetensors import is_safetensors, read_safetensors
from ..models.registry import Model
from .adapters import kind_of

TIME_STATE = re.compile(r"blocks\.(\d+)\.att\.time_state")
StateArrays = Mapping[str, npt.NDArray[Any]]


def read_initial_state(path: Path, model: Model, architecture: str) -> StateArrays:
    """Reads the states of a file and checks them against the model, before anything is loaded."""
    if is_torch_file(path):
        found = _renamed(path, read_torch_file(path))
    elif is_safetensors(path):
        found = {name: array.swapaxes(-1, -2) for name, array in _renamed(path, _of_safetensors(path)).items()}
    else:
        found = _of_gguf(path, architecture)
    if not model.states or model.caches:
        raise BadInput(f"{path}: '{architecture}' attends, so it cannot begin with a tuned state; take an RNN")
    arrays = {state.name: np.zeros(state.shape, np.float32) for state in model.states}
    for name, array in found.items():
        if name not in arrays or array.shape != arrays[name].shape:
            wanted = list(arrays[name].shape) if name in arrays else "no such state"
            raise BadInput(f"{path}: '{printable(name)}' has the shape {list(array.shape)}; the model has {wanted}")
        if not np.isfinite(array).all():
            raise BadFile(f"{path}: tensor '{name}' holds NaN or infinity; convert the state again")
        arrays[name] = array
    return arrays


def _of_gguf(path: Path, architecture: str) -> StateArrays:
    """The tensors of a GGUF file."""
    with GGUFFile.open(path) as file:
        if kind_of(file) != "state":
            raise BadInput(f"{path}: is no tuned state; its general.type must be adapter and its adapter.type state")
        own = printable(file.str("general.architecture"), 60)
        if own != architecture:
            raise BadInput(f"{path}: is a state of '{own}', and the model is '{architecture}'; take another state")
        return {tensor.name: file.values(tensor) for tensor in file.tensors.values()}


def _of_safetensors(path: Path) -> StateArrays:
    """The matrices of a safetensors file, [heads, key, value]."""
    found = read_safetensors(path, TIME_STATE)
    if any(array.ndim != 3 for array in found.values()):
        raise BadInput(f"{path}: a time_state is not [heads, key, value]; convert the state again")
    return found


def _renamed(path: Path, found: StateArrays) -> StateArrays:
    """The matrices of an RWKV program under the names of states."""
    if not any(TIME_STATE.fullmatch(name) for name in found):
        raise BadInput(f"{path}: has no tensor such as blocks.0.att.time_state; give a tuned state")
    return {TIME_STATE.sub(r"blk.\1.wkv", name): array for name, array in found.items()}


def digest_of(arrays: StateArrays | None) -> str:
    """Identifies an initial state; empty if texts begin with zeros."""
    if arrays is None:
        return ""
    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(array.tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------- files of torch.save

Floats = npt.NDArray[np.float32]
MOST_PICKLED = 4 << 20  # bytes of the pickled dict, without the data
BROKEN = (
    pickle.UnpicklingError, zipfile.BadZipFile, struct.error, EOFError, KeyError, IndexError, ValueError, TypeError,
    AttributeError, OverflowError, NotImplementedError, RecursionError, OSError, RuntimeError,
)  # fmt: skip
# The number types, and how each is converted to float32.
STORAGES: dict[str, Callable[[bytes], Floats]] = {
    "FloatStorage": lambda raw: np.frombuffer(raw, "<f4").astype(np.float32),
    "HalfStorage": lambda raw: np.frombuffer(raw, "<f2").astype(np.float32),
    "BFloat16Storage": lambda raw: (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32),
}


def is_torch_file(path: Path) -> bool:
    """True if a file is a zip, as torch writes it."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PK\3\4"


def read_torch_file(path: Path) -> dict[str, Floats]:
    """Reads the tensors by name, without torch, and without running code from the file.

    The file is a zip: a pickle of a dict of tensors, and the data of each storage as a separate file. The pickle may
    only call functions in CALLS. Python's own unpickler is used; its memory is bounded by the length of the pickle.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(one.file_size for one in archive.infolist()) > path.stat().st_size:
                raise ValueError("it is compressed")
            [name] = [one for one in archive.namelist() if one.rpartition("/")[2] == "data.pkl"]
            found = _Unpickler(archive, name.rpartition("/")[0]).load()
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
            raise TypeError("is no dict")
        return {key: _array(value) for key, value in found.items()}
    except BROKEN as error:
        what = printable(str(error)[:100]) or type(error).__name__
        raise BadFile(f"{path}: is no dict of tensors of torch.save ({what}); save the state again") from None


@dataclass(frozen=True)
class _Tensor:
    """A part of a storage."""

    numbers: Floats
    offset: int
    shape: tuple[int, ...]


def _tensor(numbers: Floats, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> _Tensor:
    """Implements torch's _rebuild_tensor_v2."""
    rows = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
    if any(size > 1 and step != row for size, step, row in zip(shape, strides, rows, strict=True)):
        raise ValueError("a tensor is not contiguous")
    return _Tensor(numbers, offset, shape)


def _array(value: Any) -> Floats:
    if not isinstance(value, _Tensor):
        raise TypeError("it holds more than tensors")
    end = value.offset + math.prod(value.shape)
    if min(value.offset, *value.shape) < 0 or end > len(value.numbers):
        raise ValueError("a tensor is longer than its numbers")
    return value.numbers[value.offset : end].reshape(value.shape)


CALLS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda value, *_: value,
    **{("torch", name): read for name, read in STORAGES.items()},
}


class _Unpickler(pickle._Unpickler):
    """An unpickler that calls only functions in CALLS, and reads storages from the archive."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        self._archive, self._folder = archive, folder
        self._numbers: dict[str, Floats] = {}
        pickled = self._stored("data.pkl")
        if len(pickled) > MOST_PICKLED:
            raise ValueError("its dict is too large")
        super().__init__(BytesIO(pickled))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in CALLS:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return CALLS[module, name]

    def persistent_load(self, pid: Any) -> Floats:
        _, read, key, *_ = pid
        if read not in STORAGES.values():
            raise TypeError("its numbers are of another type than float32, float16 and bfloat16")
        if key not in self._numbers:
            self._numbers[key] = read(self._stored(f"data/{key}"))
        return self._numbers[key]

    def _stored(self, name: str) -> bytes:
        return self._archive.read(f"{self._folder}/{name}" if self._folder else name)
