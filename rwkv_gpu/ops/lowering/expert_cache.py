"""Lowering of the expert cache: copies chosen experts into it. The GPU manages the cache, nothing is read back."""

from ...gpu.weights import ExpertCache
from ..graph import Node
from ..nodes import FetchExperts
from ..values import UniformTable, Value
from .context import Lowering

LOOKUP_LANES, FILL_LANES = 256, 256
EACH = 4  # vec4s that a lane copies


def fetch_experts(to: Lowering, node: Node, op: FetchExperts) -> None:
    cache, used = op.cache, op.experts.shape[1]
    choices = node.rows * used
    fetch = Value((choices,), "uint32")
    to.emit(
        node,
        f"{cache.name}.experts",
        ("moe/cache_lookup",),
        {"E": cache.experts, "USED": used, "SLOTS": cache.slots, "CHOICES": choices, "WG": LOOKUP_LANES},
        {"book": cache.book, "fetch": fetch},
        groups=1,
    )
    for name in cache.weights:
        _fill(to, node, cache, name, fetch, used)


def _fill(to: Lowering, node: Node, cache: ExpertCache, name: str, fetch: Value, used: int) -> None:
    """Emits the copy of missing experts of one matrix."""
    source, sizes = cache.sources[name], cache.sizes[name]
    [target] = cache.weights[name].shards
    blocks = -(-max(sizes) // (FILL_LANES * EACH))
    choices = node.rows * used
    to.emit(
        node,
        name,
        ("moe/cache_fill", "lib/lanes/plain"),
        {"USED": used, "SLOTS": cache.slots, "BLOCKS": blocks, "WG": FILL_LANES},
        {
            "w": source.slice,
            "cache": target.slice,
            "fetch": fetch,
            "copied": UniformTable((*source.planes, *target.planes, *sizes)),
        },
        groups=choices * blocks,
        fixed_bytes=0,
        row_bytes=2 * used * 16 * sum(sizes),  # if no expert is cached
    )
