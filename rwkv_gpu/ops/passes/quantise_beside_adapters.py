"""The dispatch that makes A x of LoRA adapters quantises the same x for the products that add B (A x).

    before
        %0 = gemm(x)  [s]  +gemv
        %1, %2, %3 = adapter_down(x, %0)  [q.a v.a]  +norm
        %4 = quantise(x)  +norm
        %5, %6 = gemm(%4, %1, %2, %3)  [q v]  +skinny_gemm  +quantised_x  +adapters

    after
        %0 = gemm(x)  [s]  +gemv
        %1, %2, %3, %4 = adapter_down(x, %0)  [q.a v.a]  +norm  +quantise
        %5, %6 = gemm(%4, %1, %2, %3)  [q v]  +skinny_gemm  +quantised_x  +adapters

Both are small and wait for x, so that one after the other each takes as long as a dispatch takes at least.

Condition: one dispatch makes A x, before any product reads x quantised, and norms x as these want it. One node makes
all that is quantised.
"""

from dataclasses import replace

from ..graph import Graph, Node
from ..nodes import AdapterDown, Quantise
from ..target import Target

FOUR = 4  # columns that are read at once


def run(graph: Graph, target: Target) -> int:  # noqa: ARG001 - it is the same for every device
    """The quantisation is gone: workgroups beside those of A x do it."""
    fired = 0
    for node in list(graph.nodes):
        if not isinstance(node.op, Quantise) or len(graph.writers(node.op.x)) > 1:
            continue
        for down in graph.readers(node.op.x):
            if isinstance(down.op, AdapterDown) and _wants(down, down.op, node, node.op):
                graph.replace(down, replace(down.op, beside=node.op))
                graph.remove(node)
                fired += 1
                break
    return fired


def _wants(down: Node, low: AdapterDown, node: Node, op: Quantise) -> bool:
    """Whether a node makes A x of what is quantised, early enough, and does nothing beside it yet."""
    place = down.layer, down.rows, down.picked
    alike = place == (node.layer, node.rows, node.picked) and low.norm == op.norm and down.order < node.order
    whole = low.whole and low.beside is None and all(width % FOUR == 0 for _, width in op.widths)
    return alike and whole and all(x.root is op.x.root for x in low.xs)
