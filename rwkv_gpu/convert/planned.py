"""Tensors that a conversion will write: their sources, and the operations on these."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import BadFile, printable
from ..gguf.header import Value
from ..gguf.stored import Floats, Stored

Reshape = Callable[[Floats], Floats]

RESHAPES: dict[str, Reshape] = {
    "": lambda x: x,
    "flat": lambda x: x.reshape(-1),
    "turned": lambda x: x.swapaxes(-1, -2),
}


@dataclass(frozen=True)
class Planned:
    """A tensor with its name and shape in the file, and its sources. Several sources are stacked."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[Stored, ...]
    reshape: str = ""  # a key of RESHAPES, for each source
    divisor: float = 1

    def values(self) -> Floats:
        """The numbers in the shape of the file."""
        parts = [RESHAPES[self.reshape](source.read()) for source in self.sources]
        whole = parts[0] if len(parts) == 1 else np.stack([part.reshape(-1) for part in parts])
        values = whole.reshape(self.shape)
        if not np.isfinite(values).all():
            path = printable(str(self.sources[0].path))
            raise BadFile(f"{path}: what becomes {self.name!r} has numbers that are infinite or NaN; download it again")
        return values if self.divisor == 1 else values / np.float32(self.divisor)


@dataclass(frozen=True)
class Plan:
    """A whole file: its architecture, metadata, and tensors in order."""

    architecture: str
    metadata: dict[str, Value]
    tensors: Sequence[Planned]
