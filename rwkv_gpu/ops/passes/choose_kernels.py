"""Selects a kernel for every product from the tuning, by rows, format and size.

    before
        %0 = gemm(x)  [a]  +norm
        %1 = gemm(x)  [b]  +norm

    after
        %0 = gemm(x)  [a]  +gemv  +norm
        %1 = gemm(x)  [b]  +gemm_int8  +norm

Without this pass, products use the kernel with the lowest device requirements: linear/gemv for few rows, or tiles.

Condition: none. A kernel that copies quantised rows is chosen only if the producer of x can quantise it: see
`quantise_in_producer`. Short rows are multiplied as float16 only if their producer can round them: see
`round_in_producer`.
"""

from dataclasses import replace

from ...kernels.gemm_config import GemmConfig
from ..gemm import choose, gemm_op
from ..graph import Graph, Node
from ..nodes import AdapterDown, Gemm
from ..quantising import can_quantise, can_round, quantise_for, reads_units
from ..target import Target
from ..values import Value


def run(graph: Graph, target: Target) -> int:
    """Sets the config of every product that has none. Returns their number."""
    fired = 0
    for node in list(graph.nodes):
        gemm = gemm_op(node)
        if gemm is None or gemm.config:
            continue
        graph.replace(node, replace(gemm, config=_config(graph, node, gemm, target)))
        fired += 1
    return fired


def _config(graph: Graph, node: Node, gemm: Gemm, target: Target) -> GemmConfig:
    x = gemm.products[0].x
    producer = None if gemm.prologue else graph.writer(x)
    free = producer is not None and can_quantise(graph, producer, target) is not None and _first(graph, x) is node
    config = choose(gemm, node.rows, target, quantised_for_free=free, rounded_for_free=True)
    chosen = replace(gemm, config=config)
    if reads_units(chosen, None) and not _rounds(graph, node, chosen, target):
        return choose(gemm, node.rows, target, quantised_for_free=free)
    return config


def _rounds(graph: Graph, node: Node, gemm: Gemm, target: Target) -> bool:
    """True if the producer of a product's x can round it."""
    wanted = quantise_for(gemm, node.rows)
    makers = graph.writers(wanted.x)
    return len(makers) == 1 and can_round(graph, makers[0], wanted, target)


def _first(graph: Graph, x: Value) -> Node:
    """The first product that reads x, which decides how x is quantised. Adapters read x unquantised."""
    return next(node for node in graph.readers(x) if not isinstance(node.op, AdapterDown))
