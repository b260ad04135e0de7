"""A tuned initial state: what a recurrent model begins each text with in place of zeros (state tuning).

A GGUF file with `general.type` adapter and `adapter.type` state holds tensors by the names of the model's states, such
as `blk.0.wkv` [heads, value, key]. States that are not in it begin as zeros.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, BadInput, printable
from ..gguf.file import GGUFFile
from ..gguf.planes import dequantise_rows
from ..models.registry import Model
from .adapters import kind_of

StateArrays = Mapping[str, npt.NDArray[Any]]


def read_initial_state(path: Path, model: Model, architecture: str) -> StateArrays:
    """The states of a file that fits the model; what does not is refused before anything is loaded."""
    with GGUFFile.open(path) as file:
        if kind_of(file) != "state":
            raise BadInput(f"{path}: is no tuned state; its general.type must be adapter and its adapter.type state")
        if not model.states or model.caches:
            raise BadInput(f"{path}: '{architecture}' attends, so it cannot begin with a tuned state; take an RNN")
        own = printable(file.str("general.architecture"), 60)
        if own != architecture:
            raise BadInput(f"{path}: is a state of '{own}', and the model is '{architecture}'; take another state")
        arrays = {state.name: np.zeros(state.shape, np.float32) for state in model.states}
        for tensor in file.tensors.values():
            if tensor.name not in arrays or tensor.shape != arrays[tensor.name].shape:
                wanted = list(arrays[tensor.name].shape) if tensor.name in arrays else "no such state"
                raise BadInput(f"{path}: '{tensor.name}' has the shape {list(tensor.shape)}; the model has {wanted}")
            raw = np.frombuffer(file.read(tensor), np.uint8).reshape(int(np.prod(tensor.shape[:-1])), -1)
            arrays[tensor.name] = dequantise_rows(tensor.format, raw).reshape(tensor.shape).astype(np.float32)
            if not np.isfinite(arrays[tensor.name]).all():
                raise BadFile(f"{path}: tensor '{tensor.name}' holds NaN or infinity; convert the state again")
    return arrays


def digest_of(arrays: StateArrays | None) -> str:
    """What tells initial states apart; empty where texts begin with zeros."""
    if arrays is None:
        return ""
    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(array.tobytes())
    return digest.hexdigest()
