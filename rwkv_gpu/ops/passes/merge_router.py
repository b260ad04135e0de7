"""Merges the product of a router into the dispatch of the product before it.

    before
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [router]
        %2 = gemm(%0, x)  [last]
        %3, %4, %5 = expert_products(x, %1)  [gate up]  +route
        %6 = expert_sum(%3, %4, %5, %2)  [down]

    after
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [router]  +merge
        %2 = gemm(%0, x)  [last]
        %3, %4, %5 = expert_products(x, %1)  [gate up]  +route
        %6 = expert_sum(%3, %4, %5, %2)  [down]

Neither product fills a device. Lowering gives the router the workgroup size of the product before it, unless that has
many workgroups.

Condition: steps of 2 to `Tuning.fusion.merged_batch_rows` rows; for one row, `merge_gemms` does it. Both products are
in the same layer, and the router multiplies floats.
"""

from dataclasses import replace
from itertools import pairwise

from ..gemm import choose, gemm_op, needs, whole
from ..graph import Graph, Node
from ..nodes import ExpertProducts, Gemm, Route, SortChoices
from ..nodes.epilogue import SaveState
from ..target import Target

CHOOSE = Route, SortChoices, ExpertProducts


def run(graph: Graph, target: Target) -> int:
    """Marks each router that follows an independent product. Returns their number."""
    fired = 0
    for one, other in pairwise(list(graph.nodes)) if not graph.shape.one_row else ():
        op = _router(other, graph, target)
        if op and gemm_op(one) and one.layer == other.layer and not needs(other, one):
            graph.replace(other, replace(op, merges=True))
            fired += 1
    return fired


def _router(node: Node, graph: Graph, target: Target) -> Gemm | None:
    """The product of a router, if its kernel can run with any workgroup size."""
    op = gemm_op(node)
    if op is None or op.merges or op.has(SaveState) or not whole(op, target):
        return None
    if node.rows > target.tuning.fusion.merged_batch_rows:
        return None
    chosen = all(isinstance(reader.op, CHOOSE) for one in op.products for reader in graph.readers(one.y))
    return op if chosen and choose(op, node.rows, target).entry.any_lanes else None
