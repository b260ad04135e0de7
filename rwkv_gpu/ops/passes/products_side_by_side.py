"""Moves products of the same x next to each other, so that the GPU computes them concurrently.

    before
        %0, %1, %2 = gemm(x)  [q k v]
        %4 = attend(%3)  state kv
        %5 = gemm(x)  [gate]
        %6 = gemm(%5, %4)  [output]

    after
        %0, %1, %2 = gemm(x)  [q k v]
        %5 = gemm(x)  [gate]
        %4 = attend(%3)  state kv
        %6 = gemm(%5, %4)  [output]

A step of few rows is a chain of dispatches, and each waits for the one before. A mixer parallel to attention, or the
router after a shared expert, would wait for results that it does not read. In steps of one row, neighbours then share a
dispatch: `merge_gemms`.

Condition: one row per sequence. The inputs of the product exist at its new place, and no node that it passes touches
its states.
"""

import itertools

from ..gemm import gemm_op
from ..graph import Graph, Node, Op
from ..nodes import Gemm
from ..target import Target


def run(graph: Graph, target: Target) -> int:  # noqa: ARG001 - it is the same for every device
    """Moves each such product directly behind the other products of its x. Returns the number of moves."""
    if not graph.shape.row_each:
        return 0
    fired = 0
    for node in list(graph.nodes):
        op = gemm_op(node)
        first = _first(graph, node, op) if op else None
        if op is None or first is None:
            continue
        passed = _passed(graph, first, node, op)
        if passed and not any(must_precede(other, op) for other in passed):
            graph.move_before(node, passed[0])
            fired += 1
    return fired


def _first(graph: Graph, node: Node, op: Gemm) -> Node | None:
    """The first product of the same x in the layer; None if it is this node."""
    found = next((other for other in graph.readers(op.products[0].x) if _alike(other, node, op)), node)
    return found if found is not node else None


def _passed(graph: Graph, first: Node, node: Node, op: Gemm) -> list[Node]:
    """The nodes between a product and the run of products that begins with `first`."""
    return [*itertools.dropwhile(lambda other: _alike(other, node, op), graph.between(first, node))]


def _alike(one: Node, node: Node, op: Gemm) -> bool:
    """True if a node multiplies the x of a product, in the same layer."""
    other = gemm_op(one)
    same = one.layer == node.layer and one.picked == node.picked
    return other is not None and same and other.products[0].x is op.products[0].x


def must_precede(other: Node, op: Op) -> bool:
    """True if a node must stay before an op, because the op depends on it."""
    made, needed = {value.root for value in other.op.writes}, {value.root for value in op.reads}
    states = {*op.states_read, *op.states_written} & {*other.op.states_read, *other.op.states_written}
    return bool(made & needed or states)
