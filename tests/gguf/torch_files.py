"""Writes files in the format of torch.save, without torch."""

import io
import pickle
import sys
import types
import zipfile
from collections import OrderedDict

import numpy as np


class Storage:
    """The storage of a tensor, as torch has it."""

    def __init__(self, kind: type, key: str, array: np.ndarray) -> None:
        self.kind, self.key, self.array = kind, key, array


class Tensor:
    """A tensor that pickles like one of torch."""

    def __init__(self, rebuild, storage: Storage, strides=None, offset=0, shape=None) -> None:
        shape = storage.array.shape if shape is None else shape
        strides = strides or tuple(int(np.prod(shape[at + 1 :])) for at in range(len(shape)))
        self.parts = rebuild, (storage, offset, shape, strides, False, OrderedDict())

    def __reduce__(self):
        return self.parts


def torch_names(monkeypatch):
    """Defines the names of torch that a pickle of its tensors contains."""
    package, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "BFloat16Storage", "LongStorage"):
        setattr(package, name, type(name, (), {"__module__": "torch"}))

    def _rebuild_tensor_v2():
        """A function that pickles by its name."""

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    monkeypatch.setitem(sys.modules, "torch", package)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    return package, utils


def save(path, torch, arrays, kind="FloatStorage", more=None, **place):
    """Writes a dict of tensors in the format of torch.save."""
    package, utils = torch
    stored = {name: Storage(getattr(package, kind), str(n), array) for n, (name, array) in enumerate(arrays.items())}
    tensors = {name: Tensor(utils._rebuild_tensor_v2, one, **place) for name, one in stored.items()}
    target = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, one):
            return ("storage", one.kind, one.key, "cpu", one.array.size) if isinstance(one, Storage) else None

    Pickler(target, 2).dump(OrderedDict(tensors | (more or {})))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state/data.pkl", target.getvalue())
        for one in stored.values():
            raw = one.array.astype("<f4")
            bits = (raw.view("<u4") >> 16).astype("<u2") if kind == "BFloat16Storage" else raw
            archive.writestr(f"state/data/{one.key}", bits.tobytes())
    return path


class Calls:
    """An object that calls a function when it is unpickled."""

    def __init__(self, function, *arguments) -> None:
        self.parts = function, arguments

    def __reduce__(self):
        return self.parts
