"""The codebooks of IQ formats: each entry stands for 8 consecutive weights (or 4, in IQ3 formats).

A file contains only indices of entries. Kernels look them up in a table stored after the planes of each matrix: 16 bits
per entry, with 2 (or 4) bits per weight, the index of its value among those of the format.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants

FORMATS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")


@cache
def codebook(name: str) -> npt.NDArray[np.uint8]:
    """The table of a format as bytes; empty for formats without one."""
    if name not in FORMATS:
        return np.empty(0, np.uint8)
    kind: Any = getattr(quants, name)
    kind.init_grid()
    entries, weights = kind.grid_shape
    codes = np.searchsorted(kind.grid_map, kind.grid.reshape(entries, weights))
    bits = 16 // weights
    table: npt.NDArray[np.uint16] = (codes << (bits * np.arange(weights))).sum(axis=1).astype("<u2")
    return table.view(np.uint8)
