"""A norm that several ops read is computed once.

    before
        %0 = norm(x)  [gain]
        %1 = gemm(%0)  [a]
        %2 = norm(x)  [gain]
        %3 = gemm(%2)  [b]

    after
        %0 = norm(x)  [gain]
        %1 = gemm(%0)  [a]
        %3 = gemm(%0)  [b]

Condition: the same norm of the same value.
"""

from dataclasses import replace
from typing import Any

from ..graph import Graph, Node, Op
from ..nodes import AdapterDown, ExpertProducts, Gemm, Norm
from ..target import Target
from ..values import Value


def run(graph: Graph, _target: Target) -> int:
    """Readers of the later norms read the first."""
    first: dict[tuple[Any, ...], Value] = {}
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, Norm):
            continue
        y = first.setdefault((op.x, op.how, op.add, op.scale, op.after, node.picked), op.y)
        readers = graph.readers(op.y)
        if y is op.y or graph.is_output(op.y) or not all(_reads_norms(reader) for reader in readers):
            continue
        for reader in readers:
            graph.replace(reader, reading(reader.op, op.y, y))
        graph.remove(node)
        fired += 1
    return fired


def _reads_norms(node: Node) -> bool:
    return isinstance(node.op, AdapterDown | Gemm | ExpertProducts | Norm)


def reading(op: Op, old: Value, new: Value) -> Op:
    """The same op, with another value in the place of an x."""
    if isinstance(op, Gemm):
        return replace(op, products=tuple(replace(one, x=new if one.x is old else one.x) for one in op.products))
    if isinstance(op, AdapterDown):
        return replace(op, xs=tuple(new if x is old else x for x in op.xs))
    assert isinstance(op, ExpertProducts | Norm)
    return replace(op, x=new)
