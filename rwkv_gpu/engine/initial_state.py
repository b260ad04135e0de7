"""A tuned initial state: what a recurrent model begins each text with instead of zeros (state tuning).

A GGUF file with `general.type` adapter and `adapter.type` state holds tensors with the names of the model's states,
such as `blk.0.wkv` [heads, value, key]. A torch.save file, as written by tuning programs for RWKV, holds the same
matrices as `blocks.0.att.time_state`; a safetensors file of web-rwkv (.st, .state) has them transposed. States that
the file lacks begin as zeros.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, BadInput, printable
from ..gguf.file import GGUFFile
from ..gguf.safetensors import is_safetensors, read_safetensors
from ..gguf.torch_file import is_torch_file, read_torch_file
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
        raise BadInput(f"{path}: '{architecture}' has attention, so it cannot begin with a tuned state; use an RNN")
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
            raise BadInput(f"{path}: is not a tuned state; its general.type must be adapter and its adapter.type state")
        own = printable(file.str("general.architecture"), 60)
        if own != architecture:
            raise BadInput(f"{path}: is a state for '{own}', but the model is '{architecture}'; use another state")
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
