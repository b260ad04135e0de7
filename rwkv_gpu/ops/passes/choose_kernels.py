"""Every product gets the kernel that the tuning has for its rows, format and size.

    before
        %0 = gemm(x)  [a]  +norm
        %1 = gemm(x)  [b]  +norm

    after
        %0 = gemm(x)  [a]  +gemv  +norm
        %1 = gemm(x)  [b]  +gemm_int8  +norm

Without this pass, products have the kernel that needs least of a device: linear/gemv for few rows, or tiles.

Condition: none. A kernel that copies quantised rows is chosen only if whatever makes x can quantise it: see
`quantise_in_producer`.
"""

from dataclasses import replace

from ..gemm import choose, gemm_op
from ..graph import Graph, Node
from ..nodes import AdapterDown
from ..quantising import can_quantise
from ..target import Target
from ..values import Value


def run(graph: Graph, target: Target) -> int:
    """Configs for the products that have none yet."""
    fired = 0
    for node in list(graph.nodes):
        gemm = gemm_op(node)
        if gemm is None or gemm.config:
            continue
        x = gemm.products[0].x
        producer = None if gemm.prologue else graph.writer(x)
        free = producer is not None and can_quantise(graph, producer, target) is not None and _first(graph, x) is node
        graph.replace(node, replace(gemm, config=choose(gemm, node.rows, target, quantised_for_free=free)))
        fired += 1
    return fired


def _first(graph: Graph, x: Value) -> Node:
    """The first product that reads x: it decides how x is quantised. Adapters read it as it is."""
    return next(node for node in graph.readers(x) if not isinstance(node.op, AdapterDown))
