"""Numbers and formats that all trials draw from."""

import numpy as np

from ...gguf.formats import FORMATS
from ...ops.batch import Batch
from ..trials import Array

BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
F32 = BY_NAME["F32"]
SOME = ("F16", "Q4_K", "Q6_K")  # floats, and runs of 32 and of 16


def normal(*shape: int, seed: int = 0) -> Array:
    """Normally distributed numbers, the same each time."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def decode_batch(sequences: int) -> Batch:
    """One token of each sequence, some way into it."""
    return Batch.of([(slot, 7, [0]) for slot in range(sequences)])
