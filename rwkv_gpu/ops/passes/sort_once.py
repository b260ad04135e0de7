"""Sorts the choices of experts once for all products of a layer.

    before
        %0 = gemm(x)  [router]
        %1, %2 = route(%0)  [router]
        %3 = expert_products(x, %1)  [gate up]
        %4 = expert_sum(%3, %1, %2)  [down]

    after
        %0 = gemm(x)  [router]
        %1, %2 = route(%0)  [router]
        %5, %6 = sort_choices(%1)
        %3 = expert_products(x, %1, %5, %6)  [gate up]
        %4 = expert_sum(%3, %1, %2, %5, %6)  [down]

Condition: products with experts whose kernels process several choices of one expert at a time. Products with the same
number of choices share the order.
"""

from dataclasses import replace

from ..graph import Graph
from ..moe import sorting, tile_of
from ..nodes import ExpertProducts, ExpertSum, SortChoices
from ..target import Target
from ..values import Value


def run(graph: Graph, target: Target) -> int:
    """Inserts a sort before the first of the products, and makes all of them read it. Returns the number of sorts."""
    made: dict[tuple[Value, int], SortChoices] = {}
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, ExpertProducts | ExpertSum) or op.sorted:
            continue
        tile = tile_of(op, node.rows, target)
        if tile == 1:
            continue
        key = op.routing.experts, tile
        if key not in made:
            made[key] = sorting(op, tile, node.rows)
            graph.insert_before(node, made[key])
        graph.replace(node, replace(op, sorted=made[key]))
    return len(made)
