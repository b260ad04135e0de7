"""A tensor of a checkpoint: where its numbers are in a file. They are read when they are needed."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, printable

Floats = npt.NDArray[np.float32]
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}  # bytes of a number


@dataclass(frozen=True)
class Stored:
    """A tensor of numbers of a type, at a byte of a file. Whoever makes one has checked it against the file's size."""

    path: Path
    offset: int
    type: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def read(self) -> Floats:
        """All numbers as float32, in its shape."""
        if self.type not in WIDTHS:
            raise ValueError(f"its numbers are {self.type}; known: {', '.join(WIDTHS)}")
        nbytes = self.count * WIDTHS[self.type]
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                raw = file.read(nbytes)
        except OSError as error:
            raise BadFile(f"{printable(str(self.path))}: cannot be read: {error.strerror}") from None
        if len(raw) != nbytes:
            raise BadFile(f"{printable(str(self.path))}: has become shorter while it was read; try again")
        if self.type == "BF16":
            return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        return np.frombuffer(raw, "<f4" if self.type == "F32" else "<f2").astype(np.float32).reshape(self.shape)
