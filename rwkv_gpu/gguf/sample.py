"""A cheap check of the weights of a file before use: some blocks of each tensor must contain finite numbers only."""

import numpy as np

from ..errors import BadFile
from .file import GGUFFile
from .formats import FORMATS
from .planes import dequantise_rows
from .scan import TensorInfo

RUNS = 4  # number of places of a tensor that are read
RUN = 4096  # bytes read at each; smaller tensors are read as a whole


def check_sample(file: GGUFFile) -> None:
    """Raises BadFile with the name of the first tensor whose sampled weights are NaN or infinite."""
    for tensor in file.tensors.values():
        if tensor.type in FORMATS and not _is_sound(file, tensor):
            raise BadFile(
                f"{file.path}: tensor '{tensor.name}' has numbers that are NaN or infinite; the file is damaged: "
                "download it again"
            )


def _is_sound(file: GGUFFile, tensor: TensorInfo) -> bool:
    block = tensor.format.nbytes
    blocks, run = tensor.nbytes // block, RUN // block
    starts = [0] if blocks <= RUNS * run else [place * (blocks - run) // (RUNS - 1) for place in range(RUNS)]
    count = blocks if len(starts) == 1 else run
    data = b"".join(file.read(tensor, start * block, (start + count) * block) for start in starts)
    weights = dequantise_rows(tensor.format, np.frombuffer(data, np.uint8).reshape(-1, block))
    return bool(np.isfinite(weights).all())
