"""Parameters on the GPU: packed into planes that kernels read aligned, in shards that a binding can hold."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..gguf.formats import FORMATS, Format
from .device import Device
from .plan import Slice
from .shader import Constant

RUN = 32  # weights that a kernel decodes at a time; rows are padded to whole runs
FORMAT_OF = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}


@dataclass(frozen=True)
class Shard:
    """Whole rows of a matrix in one binding."""

    slice: Slice
    first: int  # row of the matrix
    rows: int
    parts: tuple[str, ...]  # the shader parts that decode it
    planes: tuple[int, int, int, int]  # where each plane starts, in vec4s

    @property
    def constants(self) -> dict[str, Constant]:
        """What the shader parts need to know."""
        return dict(zip(("PLANE0", "PLANE1", "PLANE2", "PLANE3"), self.planes, strict=True))


@dataclass(frozen=True)
class DeviceWeight:
    """A parameter in GPU memory, in the format whose shader part reads it."""

    format: Format
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]


def upload_weights(device: Device, arrays: Mapping[str, npt.NDArray[np.floating]]) -> dict[str, DeviceWeight]:
    """Every float array to the device, its rows padded with zeros to whole runs."""
    return {name: _upload(device, array) for name, array in arrays.items()}


def _upload(device: Device, array: npt.NDArray[np.floating]) -> DeviceWeight:
    padding = [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % RUN)]
    buffer = device.upload(np.pad(array, padding), "weights")
    name = FORMAT_OF[array.dtype]
    fmt = next(fmt for fmt in FORMATS.values() if fmt.name == name)
    rows = array.shape[0] if array.ndim > 1 else 1
    shard = Shard(Slice(buffer, 0, buffer.nbytes), 0, rows, (f"format/{name.lower()}",), (0, 0, 0, 0))
    return DeviceWeight(fmt, array.shape, (shard,))
