"""Slots in GPU memory for the weights of one layer at a time, when weights stay in main memory.

A step of many rows reads each weight several times. So it copies the weights of a layer over the bus once, before it
computes the layer.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from .device import Buffer, Device
from .loader import Parameter, buffers_of
from .weights import Weights


def slot_sizes(device: Device, parameters: Sequence[Parameter]) -> list[int]:
    """The bytes of each slot, one per buffer of a layer, large enough for any layer. Experts are not copied."""
    blocks: dict[str, list[int]] = {}
    for nbytes, host, members in buffers_of(device, parameters):
        first = members[0][0]
        if host and first.block != first.name and not first.is_experts:
            blocks.setdefault(first.block, []).append(nbytes)
    ordered = (sorted(sizes, reverse=True) for sizes in blocks.values())
    return [max(each) for each in zip_longest(*ordered, fillvalue=0)]


def assign_slots(device: Device, weights: Weights, parameters: Iterable[Parameter]) -> Mapping[Buffer, Buffer]:
    """The slot for the weights of each buffer."""
    blocks: dict[str, dict[Buffer, None]] = {}
    for p in parameters:
        if p.host and p.block != p.name and not p.is_experts:
            for shard in weights[p.name].shards:
                blocks.setdefault(p.block, {})[shard.slice.buffer] = None
    ordered = [sorted(buffers, key=lambda buffer: -buffer.nbytes) for buffers in blocks.values()]
    sizes = [max(buffer.nbytes for buffer in each if buffer) for each in zip_longest(*ordered)]
    slots = [device.buffer(nbytes, "scratch") for nbytes in sizes]
    return {buffer: slot for buffers in ordered for buffer, slot in zip(buffers, slots, strict=False)}
