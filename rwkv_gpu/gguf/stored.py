"""Tensors of checkpoints by their place in a file. Their numbers are read only when needed."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, printable

Floats = npt.NDArray[np.float32]
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}  # bytes of a number


@dataclass(frozen=True)
class Stored:
    """The type, shape and place of a tensor in a file. The place was checked against the size of the file."""

    path: Path
    offset: int
    type: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def rows(self, start: int, stop: int) -> "Stored":
        """Some rows of the tensor, seen as a matrix."""
        width = self.shape[-1]
        return replace(self, offset=self.offset + start * width * WIDTHS[self.type], shape=(stop - start, width))

    def read(self) -> Floats:
        """All numbers as float32, in its shape."""
        if self.type not in WIDTHS:
            raise ValueError(f"its numbers are {self.type}; known: {', '.join(WIDTHS)}")
        raw = self.bytes()
        if self.type == "BF16":
            return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        return np.frombuffer(raw, "<f4" if self.type == "F32" else "<f2").astype(np.float32).reshape(self.shape)

    def bytes(self) -> bytes:
        """All bytes of the tensor."""
        nbytes = self.count * WIDTHS.get(self.type, 1)
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                raw = file.read(nbytes)
        except OSError as error:
            raise BadFile(f"{printable(str(self.path))}: cannot be read: {error.strerror}") from None
        if len(raw) != nbytes:
            raise BadFile(f"{printable(str(self.path))}: has become shorter while it was read; try again")
        return raw
