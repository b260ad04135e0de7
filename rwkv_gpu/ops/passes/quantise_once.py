"""What several products multiply as integers is quantised once.

    before
        %0 = gemm(x)  [a]  +gemm_int8
        %1 = gemm(x)  [b]  +gemm_int8

    after
        %2 = quantise(x)
        %0 = gemm(%2)  [a]  +gemm_int8  +quantised_x
        %1 = gemm(%2)  [b]  +gemm_int8  +quantised_x

A norm in the prologue of such a product moves into the quantisation, which sees whole rows.

Condition: the kernel of the product reads quantised rows. Without this pass each product quantises for itself.
"""

from collections.abc import Hashable
from dataclasses import replace

from ..gemm import gemm_op
from ..graph import Graph
from ..nodes import Quantise
from ..quantising import quantise_for
from ..target import Target


def run(graph: Graph, _target: Target) -> int:
    """Products read integers that a node before the first of them makes."""
    made: dict[Hashable, Quantise] = {}
    for node in list(graph.nodes):
        gemm = gemm_op(node)
        if gemm is None or gemm.quantised_x or not (gemm.config and gemm.config.reads_quantised):
            continue
        wanted = quantise_for(gemm, node.rows)
        key = wanted.x, wanted.widths, wanted.out.size, wanted.out.by_rows, wanted.norm
        if key not in made:
            made[key] = wanted
            graph.insert_before(node, wanted)
        graph.replace(node, replace(gemm, prologue=None, quantised_x=made[key].out))
    return len(made)
