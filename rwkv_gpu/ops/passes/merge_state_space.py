"""A state space beside attention shares its dispatch.

    before
        %0, %1, %2 = gemm(x)  [q k v]
        %3, %4 = gemm(x)  [xbc z]
        %6 = attend(%5)  state kv
        %7 = gemm(%6, x)  [output]
        %8 = ssd(%3, %4)  [rate]  state ssm
        %9 = gemm(%8, %7)  [out]

    after
        %0, %1, %2 = gemm(x)  [q k v]
        %3, %4 = gemm(x)  [xbc z]
        %6 = attend(%5)  state kv
        %8 = ssd(%3, %4)  [rate]  state ssm  +merge
        %7 = gemm(%6, x)  [output]
        %9 = gemm(%8, %7)  [out]

In a layer of Falcon-H1 both look at the same x. Neither needs the other, but in the order of the layer the state space
would wait for attention and for the product behind it.

Condition: one row for each sequence. Nothing between the two makes what the state space reads. In steps of one row they
share a dispatch, where their kernels have workgroups of one size; of several rows the GPU overlaps them by itself.
"""

from dataclasses import replace

from ..graph import Graph
from ..nodes import Attend, Ssd
from ..target import Target
from .products_side_by_side import holds_up


def run(graph: Graph, target: Target) -> int:
    """Each such state space stands right behind attention."""
    if not graph.shape.row_each:
        return 0
    fired, attention = 0, None
    for node in list(graph.nodes):
        if isinstance(node.op, Attend):
            attention = node
        if not isinstance(node.op, Ssd) or attention is None or attention.layer != node.layer:
            continue
        passed = [*graph.between(attention, node)]
        if passed and not any(holds_up(other, node.op) for other in (attention, *passed)):
            graph.move_before(node, passed[0])
            merges = graph.shape.one_row and node.rows <= target.tuning.fusion.merged_rows
            graph.replace(node, replace(node.op, merges=merges))
            fired += 1
    return fired
