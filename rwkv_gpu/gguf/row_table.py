"""A matrix of a file whose rows are read when a step needs them, such as a table of n-grams."""

import weakref

import numpy as np
import numpy.typing as npt

from .file import GGUFFile
from .planes import dequantise_rows
from .scan import TensorInfo


class RowTable:
    """Rows of a tensor as float32. It opens the file again, so the caller may close its own."""

    def __init__(self, file: GGUFFile, tensor: TensorInfo) -> None:
        self._source, self._tensor = file.reopen(tensor), tensor
        self.close = weakref.finalize(self, self._source.close)  # also if it is not called

    def __getitem__(self, numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """The rows with these numbers, [*numbers.shape, width]; reads each row once."""
        tensor = self._tensor
        rows, width = tensor.shape
        wanted, places = np.unique(numbers, return_inverse=True)
        if wanted[-1] >= rows:
            raise IndexError(f"row {wanted[-1]} of {rows} in tensor '{tensor.name}'")
        raw = np.empty((len(wanted), tensor.format.row_bytes(width)), np.uint8)
        for row, into in zip(wanted.tolist(), raw, strict=True):
            self._source.read_into(tensor.offset + row * into.nbytes, into.data)
        return dequantise_rows(tensor.format, raw)[places].reshape(*numbers.shape, width)
