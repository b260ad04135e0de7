"""The tensors of a model that exists as metadata only: its loader runs, and the tensors that it takes are listed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gguf.fields import Fields
from ..gguf.file import GGUFFile
from ..gguf.scan import TensorInfo
from ..models.registry import load_model

Sizes = Mapping[str, tuple[int, ...]]

F32 = 0  # a placeholder: formats are chosen later
BLOCK = re.compile(r"blk\.\d+\.")


def stem_of(name: str) -> str:
    """The name of a tensor without its block and `.weight`."""
    return BLOCK.sub("", name, count=1).removesuffix(".weight")


class TakenTensors(dict[str, TensorInfo]):
    """Tensors by name, in the order in which a loader takes them."""

    def __init__(self, optional: str, known: Sizes) -> None:
        super().__init__()
        self._optional, self._known = re.compile(optional), known
        for name, shape in known.items():
            if name.startswith("blk."):
                self.add(f"{name}.weight", shape)

    def __contains__(self, name: object) -> bool:
        whole = str(name)
        stem = stem_of(whole)
        known = super().__contains__(name) or stem in self._known
        return known or any(self._optional.fullmatch(one) for one in (stem, whole))

    def __missing__(self, name: str) -> TensorInfo:
        return self.add(name, self._known[stem_of(name)])

    def add(self, name: str, shape: Sequence[int]) -> TensorInfo:
        """Adds a tensor. Its shape may be known in more detail."""
        known = self._known.get(name.removesuffix(".weight"), self._known.get(stem_of(name), shape))
        return self.setdefault(name, TensorInfo(name, F32, tuple(known), 0, 0, 0))


class AllNames(frozenset[str]):
    """A set of all names."""

    def isdisjoint(self, _: Iterable[object]) -> bool:
        return False


class Undescribed(GGUFFile):
    """A file with metadata only. It has each tensor that a loader takes, and those optional ones that it is to have."""

    def __init__(self, metadata: Mapping[str, Any], taken: TakenTensors) -> None:
        arrays = {key: np.array(value) for key, value in metadata.items() if isinstance(value, list)}
        Fields.__init__(self, "a synthetic model", {**metadata, **arrays})
        self.path, self.tensors, self._taken = Path("a synthetic model"), taken, taken
        self.separate = AllNames()  # formats are unknown, so no matrices are interleaved

    def require(self, name: str, shape: Sequence[int]) -> None:
        self._taken.add(name, shape)

    def values(self, tensor: TensorInfo) -> npt.NDArray[np.float32]:
        return np.ones(tensor.shape, np.float32)


def taken_by_loader(metadata: Mapping[str, Any], optional: str, known: Sizes) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a model, in the order in which its loader takes them.

    The model has those optional tensors whose name matches `optional`, in full or without block and `.weight`.
    `known` has shapes by such short names: those that a loader reads from a file, and those with more dimensions than
    the loader asks for.
    """
    taken = TakenTensors(optional, known)
    load_model(Undescribed(metadata, taken))
    return {name: tensor.shape for name, tensor in taken.items()}
