"""What sorts choices of experts makes them as well.

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

One workgroup does both: each of its subgroups chooses for a row or two, and nobody waits for another dispatch.

Condition: nothing reads a choice before it is sorted. Subgroups have the logits of all experts in registers, and an
expert is chosen by its own logit, as in `route_into_experts`. The workgroup has a subgroup for every other row.
"""

from dataclasses import replace

from ..graph import Graph, Node
from ..moe import subgroups_rank
from ..nodes import Route, SortChoices
from ..target import Target

ROWS_OF_A_SUBGROUP = 2
BUFFERS = 5  # the logits, the two of the choice, and the two of the order


def run(graph: Graph, target: Target) -> int:
    """The route is gone; what sorts the choices holds it."""
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
    """Whether a node comes before all that read the shares."""
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
