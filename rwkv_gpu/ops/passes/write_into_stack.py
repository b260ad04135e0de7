"""Convolutions, norms by groups, heads that get another size, and what is made by element go where a kernel reads it.

    before
        %0 = conv1d(x)  [q]  state q
        %1 = conv1d(x)  [k]  state k
        %2 = conv1d(x)  [v]  state v
        %3, %4 = gemm(x)  [beta decay]
        %5 = copy(%0)
        %6 = copy(%1)
        %7 = copy(%2)
        %9 = gated_delta_rule(%8, %3, %4, x)  state delta

    after
        %5 = conv1d(x)  [q]  state q
        %6 = conv1d(x)  [k]  state k
        %7 = conv1d(x)  [v]  state v
        %3, %4 = gemm(x)  [beta decay]
        %9 = gated_delta_rule(%8, %3, %4, x)  state delta

Condition: nothing but the copy reads what they give.
"""

from dataclasses import replace

from ..graph import Graph
from ..nodes import Conv1d, Copy, GroupNorm, Map, ResizeHeads
from ..target import Target

WRITERS = Conv1d, GroupNorm, Map, ResizeHeads


def run(graph: Graph, target: Target) -> int:  # noqa: ARG001 - it is the same for every device
    """The copies are gone."""
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        writer = graph.writer(op.x) if isinstance(op, Copy) else None
        if not isinstance(op, Copy) or writer is None or not isinstance(writer.op, WRITERS):
            continue
        if graph.readers(op.x) == [node] and not graph.is_output(op.x):
            graph.remove(node)
            graph.replace(writer, replace(writer.op, y=op.y))
            fired += 1
    return fired
