"""What several products multiply as integers is quantised once.

    before
        %0 = gemm(x)  [a]  +gemm_int8
        %1 = gemm(x)  [b]  +gemm_int8

    after
        %2 = quantise(x)
        %0 = gemm(%2)  [a]  +gemm_int8  +quantised_x
        %1 = gemm(%2)  [b]  +gemm_int8  +quantised_x

A norm in the prologue of such a product moves into the quantisation, which sees whole rows.

Condition: the kernel of the product, or of products with experts, reads quantised rows. Without this pass each product
quantises for itself.
"""

from collections.abc import Hashable
from dataclasses import replace

from ..graph import Graph, Node, Op
from ..moe import multiplies_rounded
from ..nodes import ExpertProducts, ExpertSum, Gemm, Quantise
from ..nodes.prologue import ReadQuantised
from ..quantising import quantise_for, rounding_for
from ..target import Target
from ..values import Quantised


def run(graph: Graph, target: Target) -> int:
    """Products read integers that a node before the first of them makes."""
    made: dict[Hashable, Quantise] = {}
    for node in list(graph.nodes):
        wanted = _wanted(node, target)
        if wanted is None:
            continue
        key = wanted.x, wanted.widths, wanted.out.size, wanted.out.by_rows, wanted.norm
        if key not in made:
            made[key] = wanted
            graph.insert_before(_first(graph, node, wanted), wanted)
        graph.replace(node, _reading(node.op, made[key].out))
    return len(made)


def _first(graph: Graph, node: Node, wanted: Quantise) -> Node:
    """What the quantisation stands before: of experts their router, as the GPU may then do both at the same time."""
    if isinstance(node.op, Gemm) or wanted.x.base:
        return node
    return next(one for one in graph.readers(wanted.x) if (one.layer, one.picked) == (node.layer, node.picked))


def _wanted(node: Node, target: Target) -> Quantise | None:
    """What a product reads in place of rows of x that nobody has quantised for it yet."""
    op = node.op
    if isinstance(op, Gemm) and not op.has(ReadQuantised) and op.config and op.config.reads_quantised:
        return quantise_for(op, node.rows)
    if isinstance(op, ExpertProducts | ExpertSum) and not op.quantised_x and multiplies_rounded(op, node.rows, target):
        return rounding_for(op, node.rows)
    return None


def _reading(op: Op, x: Quantised) -> Op:
    if isinstance(op, Gemm):
        return op.reading(x)
    if isinstance(op, ExpertProducts):
        return replace(op, norm=None, quantised_x=x)
    assert isinstance(op, ExpertSum)
    return replace(op, quantised_x=x)
