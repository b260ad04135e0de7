"""Lowering of an indexer: its keys are written to their pages, then each row chooses the keys that attention sees."""

import numpy as np

from ...gpu.cost import ContextCost
from ...gpu.shader import Constant
from ..graph import Node
from ..nodes import ChooseKeys, WriteIndex
from ..values import Operand, Value
from ..vocabulary import NO_KEY, PAGE, Cache
from .attention import rope_operand
from .context import Lowering

SCORING_GROUPS = 64  # maximum number of workgroups; each needs memory for the scores of a whole context
SCORING_LANES = 256  # lanes per workgroup


def write(to: Lowering, node: Node, op: WriteIndex) -> None:
    """Emits the write of keys to their pages, and the rotation of queries."""
    [keys] = to.memory.caches.places[op.cache.name]
    rope, fmt = op.how.rope, to.memory.caches.format_of(op.cache)
    dims = rope.dims if rope else 0
    operands: dict[str, Operand] = {"keys": keys}
    parts = ["attention/latent/no_rope"]
    if rope:
        parts = ["attention/latent/rotate", f"attention/rope/{rope.pairing}"]
        operands["turns"] = rope_operand(to, rope)
    to.emit(
        node,
        op.cache.name,
        ("attention/index_write", *parts, "attention/eight", f"attention/latent/write_{fmt.name}", "lib/lanes/plain"),
        {
            "H": op.how.heads,
            "N": op.cache.size,
            "DIMS": dims,
            "FIRST": op.cache.size - dims if op.how.last else 0,
            "BACK": 0 if op.how.by_head else op.how.block - 1,
            "PAGE": PAGE,
            "WG": to.tuning.lanes.map_lanes,
        },
        operands,
        groups=node.rows,
        fixed_bytes=0,
        row_bytes=fmt.nbytes(op.cache.size),
    )


def choose(to: Lowering, node: Node, op: ChooseKeys) -> None:
    """Emits the choice of keys; workgroups take turns at the lists of all rows."""
    [keys] = to.memory.caches.places[op.cache.name]
    caches, size, how = to.memory.caches, op.cache.size, op.how
    groups, fmt = min(node.rows * how.lists, SCORING_GROUPS), caches.format_of(op.cache)
    candidates = caches.max_pages * PAGE // how.block + 1
    kind = "largest" if how.by_head else "unweighted" if op.weights is None else "weighted"
    to.emit(
        node,
        op.cache.name,
        (
            "attention/choose_keys",
            f"attention/index/{kind}",
            f"attention/latent/read_{fmt.name}",
            "attention/eight",
            pages_of_rows(to),
            "lib/lanes/plain",
        ),
        {
            "H": how.heads,
            "N": size,
            "COUNT": how.count,
            "BLOCK": how.block,
            "LISTS": how.lists,
            "LENGTH": how.width,
            "NO_KEY": NO_KEY,
            "GROUPS": groups,
            "CANDIDATES": candidates,
            "MAX_PAGES": caches.max_pages,
            "PAGE": PAGE,
            **strides(op.cache),
            "WG": min(SCORING_LANES, to.can.max_invocations),
        }
        | ({"RECENT": how.recent} if how.by_head else {}),
        {"keys": keys, "scores": Value((groups, candidates), np.uint32)},
        groups=groups,
        fixed_bytes=0,
        context_cost=ContextCost(0, fmt.nbytes(size), 2 * how.heads * size, 0),
    )


def strides(cache: Cache) -> dict[str, Constant]:
    """The positions of an entry of a cache, and of a row of its pages."""
    return {"ENTRY": cache.stride, "PER_ROW": cache.step}


def pages_of_rows(to: Lowering) -> str:
    """The part that finds the page table of a row."""
    return f"attention/latent/pages_of_{'rows' if to.shape.decode else 'segments'}"
