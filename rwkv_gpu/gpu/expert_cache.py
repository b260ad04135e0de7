"""Creates caches of recently used experts on the GPU, for mixtures in main memory."""

from collections.abc import Sequence
from dataclasses import replace

from .device import Device
from .loader import Parameter, Place, place_weights
from .plan import Slice
from .weights import BOOK_HEADER, ExpertCache, Weights, layout


def expert_caches(device: Device, weights: Weights, experts: Sequence[Parameter], slots: int) -> list[ExpertCache]:
    """Creates a cache for each layer whose matrices are in one binding each, with experts of whole vec4s."""
    blocks: dict[str, list[Parameter]] = {}
    for p in experts:
        blocks.setdefault(p.block, []).append(p)
    found = (_cache(device, weights, name, members, slots) for name, members in blocks.items())
    return [cache for cache in found if cache is not None]


def _cache(device: Device, weights: Weights, name: str, members: Sequence[Parameter], slots: int) -> ExpertCache | None:
    sizes = {}
    for p in members:
        bytes_of_expert = [p.shape[-2] * nbytes for nbytes in layout(p.format, p.rows, p.width).row_bytes]
        if len(weights[p.name].shards) > 1 or any(nbytes % 16 for nbytes in bytes_of_expert):
            return None
        sizes[p.name] = tuple(nbytes // 16 for nbytes in bytes_of_expert) + (0,) * (4 - len(bytes_of_expert))
    slots = min(slots, members[0].shape[0])
    kept = [replace(p, shape=(slots, *p.shape[1:]), host=False) for p in members]
    places: list[Place] = []
    copies = place_weights(device, kept, lambda nbytes, _: device.buffer(nbytes, "expert cache"), places)
    if any(len(weight.shards) > 1 for weight in copies.values()):
        return None
    for place in places:
        if place.where.table.size:
            target = place.shard.slice
            device.write(target.buffer, place.where.table, target.offset + place.where.starts[-1])
    experts = members[0].shape[0]
    book = device.buffer(4 * (BOOK_HEADER + experts + 2 * slots), "expert cache")
    return ExpertCache(
        name, experts, slots, {p.name: weights[p.name].shards[0] for p in members}, dict(copies), sizes,
        Slice(book, 0, book.nbytes),
    )  # fmt: skip
