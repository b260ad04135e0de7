"""The user's options for placing a model: on the GPU, or in main memory."""

import re
from dataclasses import dataclass

from ..errors import BadInput

MAX_LAYERS = 1 << 16
SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Offload:
    """Requested placement. None is chosen by available memory."""

    gpu_layers: int | None = None  # layers on the GPU, counted from the last; the output counts as one
    cpu_moe: int = 0  # number of first layers whose experts stay in main memory
    gpu_memory: int | None = None  # maximum bytes of the model on the GPU
    tables: bool = False  # whether only tables stay in main memory of which a token reads some rows

    @classmethod
    def of(
        cls,
        gpu_layers: int | None = None,
        cpu_moe: bool = False,
        n_cpu_moe: int = 0,
        gpu_memory: int | str | None = None,
    ) -> "Offload":
        """Reads the options of a user. `cpu_moe` means the experts of all layers; a size may be a text such as 8G."""
        layers = MAX_LAYERS if cpu_moe else n_cpu_moe
        return cls(gpu_layers, layers, None if gpu_memory is None else memory_size(gpu_memory))

    @property
    def chosen(self) -> bool:
        """True if it determines where parameters are placed."""
        return self.gpu_layers is not None or self.cpu_moe > 0 or self.tables


ON_GPU = Offload()  # as many weights on the GPU as fit


def memory_size(size: object) -> int:
    """Parses bytes from a number, or a text such as 8G, 7.5GB or 8GiB."""
    found = SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    nbytes = size if found is None else int(float(found[1]) * UNITS[found[2].upper()])
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 1:
        raise BadInput(f"gpu_memory is {size!r}; it must be a number of bytes, or a text such as 8G")
    return nbytes
