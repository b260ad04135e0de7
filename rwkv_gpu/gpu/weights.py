"""Parameters on the GPU: laid out so that kernels read aligned runs of a row."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .device import Device
from .plan import Slice

RUN = 32  # weights that a kernel decodes at a time; rows are padded to whole runs
FORMAT_OF = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}


@dataclass(frozen=True)
class DeviceWeight:
    """A parameter in GPU memory, in the format whose shader part reads it."""

    slice: Slice
    format: str
    shape: tuple[int, ...]


def upload_weights(device: Device, arrays: Mapping[str, npt.NDArray[np.floating]]) -> dict[str, DeviceWeight]:
    """Every array to the device, its rows padded with zeros to whole runs."""
    return {name: _upload(device, array) for name, array in arrays.items()}


def _upload(device: Device, array: npt.NDArray[np.floating]) -> DeviceWeight:
    padding = [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % RUN)]
    buffer = device.upload(np.pad(array, padding), "weights")
    return DeviceWeight(Slice(buffer, 0, buffer.nbytes), FORMAT_OF[array.dtype], array.shape)
