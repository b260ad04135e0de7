"""How the vectors of a text's tokens become the one of the text."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedModel
from ..gguf.file import GGUFFile

Floats = npt.NDArray[np.float32]
KINDS = {0: "mean", 1: "mean", 2: "first", 3: "last"}  # as `pooling_type` numbers them; 0 is none


@dataclass(frozen=True)
class Pooling:
    """The mean of all tokens, the first, or the last; then maybe matrices."""

    kind: str
    dense: tuple[Floats, ...] = ()  # [out, in], one after the other

    @classmethod
    def of(cls, file: GGUFFile) -> "Pooling":
        """As the file has it; the mean where it does not say."""
        key = f"{file.str('general.architecture')}.pooling_type"
        number = file.int(key, default=1)
        if number not in KINDS:
            raise UnsupportedModel(f"{file.path}: {key} is {number}; known: 0 to {max(KINDS)}")
        return cls(KINDS[number])

    def begun(self) -> "Pool":
        """What takes the tokens of a text."""
        return Pool(self)


class Pool:
    """The tokens of one text, as they come."""

    def __init__(self, how: Pooling) -> None:
        self._how = how
        self._found: npt.NDArray[np.float64] | None = None

    def take(self, rows: Floats) -> None:
        """The next tokens. [T, D]"""
        if not len(rows):
            return
        if self._how.kind == "mean":
            self._found = rows.sum(axis=0, dtype=np.float64) + (0 if self._found is None else self._found)
        elif self._how.kind == "last" or self._found is None:
            self._found = rows[-1 if self._how.kind == "last" else 0].astype(np.float64)

    def vector(self) -> npt.NDArray[np.float64]:
        """That of the text, of length one."""
        assert self._found is not None, "a text has at least one token"
        x = self._found
        for matrix in self._how.dense:
            x = matrix.astype(np.float64) @ x
        y: npt.NDArray[np.float64] = x / np.linalg.norm(x)
        return y
