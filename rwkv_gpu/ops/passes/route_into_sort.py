"""Fuses the choice of experts into the op that sorts the choices.

    before
        %0 = gemm(x)  [router]
        %1, %2 = route(%0)  [router]
        %3, %4 = sort_choices(%1)
        %5 = expert_products(x, %1, %3, %4)  [gate up]
        %6 = expert_sum(%5, %1, %2, %3, %4)  [down]

    after
        %0 = gemm(x)  [router]
        %3, %4, %1, %2 = sort_choices(%0)  [router]  +route
        %5 = expert_products(x, %1, %3, %4)  [gate up]
        %6 = expert_sum(%5, %1, %2, %3, %4)  [down]

One workgroup does both: each of its subgroups chooses for one or two rows, which saves a dispatch.

Condition: nothing reads a choice before it is sorted. Subgroups hold the logits of all experts in registers, and an
expert's score depends on its own logit only, as in `route_into_experts`. There is a subgroup for every two rows.
"""

from dataclasses import replace

from ..graph import Graph, Node
from ..moe import subgroups_rank
from ..nodes import Route, SortChoices
from ..target import Target

ROWS_OF_A_SUBGROUP = 2
BUFFERS = 5  # storage buffers: logits, experts, shares, order and tiles


def run(graph: Graph, target: Target) -> int:
    """Moves each route into the op that sorts its choices. Returns the number of moves."""
    fired = 0
    for node in list(graph.nodes) if target.tuning.fusion.fuses_routing else []:
        if not isinstance(node.op, Route) or not _ranks(node, node.op, target):
            continue
        first = next(iter(graph.readers(node.op.routing.experts)), None)
        if first and isinstance(first.op, SortChoices) and _comes_first(graph, first, node.op):
            graph.replace(first, replace(first.op, route=node.op))
            graph.remove(node)
            fired += 1
    return fired


def _comes_first(graph: Graph, node: Node, route: Route) -> bool:
    """True if a node comes before all readers of the shares."""
    return all(node.order < reader.order for reader in graph.readers(route.routing.shares))


def _ranks(node: Node, op: Route, target: Target) -> bool:
    can = target.can
    width, extras = can.subgroup_size, (op.how.selection_bias, op.how.answer_scale)
    return (
        subgroups_rank(op, width)
        and op.how.used <= width
        and node.rows <= ROWS_OF_A_SUBGROUP * (can.max_invocations // width)
        and BUFFERS + sum(map(bool, extras)) <= can.max_storage_buffers
    )
