"""Factors of LoRA adapters on a device: those of one block lie together, so that one dispatch can read several."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ..gpu.device import Buffer, Device
from ..gpu.weights import BY_NAME, Tensor, Weights, place_together, upload_together
from .adapters import Array


def upload_factors(device: Device, weights: Weights, values: Mapping[str, Array]) -> None:
    """Puts them beside the parameters of a model."""
    for block in _blocks(values):
        for name, weight in upload_together(device, block).items():
            weights.add(name, weight)


def place_factors(
    device: Device, weights: Weights, values: Mapping[str, Array], allocate: Callable[[int], Buffer]
) -> None:
    """The same in buffers that need not be there, with nothing written."""
    for block in _blocks(values):
        for name, weight in place_together(device, block, allocate).items():
            weights.add(name, weight)


def _blocks(values: Mapping[str, Array]) -> Iterator[dict[str, Tensor]]:
    """The factors of one block after the other, as bytes."""
    blocks: dict[str, dict[str, Tensor]] = {}
    for name, array in values.items():
        block = blocks.setdefault(".".join(name.split(".")[:2]), {})
        rows = array.reshape(-1, array.shape[-1])  # of all experts
        block[name] = BY_NAME["F16"], rows.astype(np.float16).view(np.uint8), array.shape
    return iter(blocks.values())
