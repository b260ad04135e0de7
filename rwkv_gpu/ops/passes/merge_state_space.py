"""Merges a state space that is parallel to attention into the dispatch of attention.

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

In a layer of Falcon-H1 both read the same x. They are independent, but in the order of the layer the state space would
wait for attention and for the product after it.

Condition: one row per sequence. Nothing between the two writes an input of the state space. In steps of one row they
share a dispatch if their kernels have one workgroup size; with several rows the GPU overlaps them without merging.
"""

from dataclasses import replace

from ..graph import Graph
from ..nodes import Attend, Ssd
from ..target import Target
from .products_side_by_side import must_precede


def run(graph: Graph, target: Target) -> int:
    """Moves each such state space to just after attention. Returns the number of moves."""
    if not graph.shape.row_each:
        return 0
    fired, attention = 0, None
    for node in list(graph.nodes):
        if isinstance(node.op, Attend):
            attention = node
        if not isinstance(node.op, Ssd) or attention is None or attention.layer != node.layer:
            continue
        passed = [*graph.between(attention, node)]
        if passed and not any(must_precede(other, node.op) for other in (attention, *passed)):
            graph.move_before(node, passed[0])
            merges = graph.shape.one_row and node.rows <= target.tuning.fusion.merged_rows
            graph.replace(node, replace(node.op, merges=merges))
            fired += 1
    return fired
