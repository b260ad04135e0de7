"""Sorts the choices of experts once, and fuses the choice itself into its first reader."""

from dataclasses import replace

from ..graph import Graph, Node
from ..moe import products_config, sorting, subgroups_rank, tile_of
from ..nodes import ExpertProducts, ExpertSum, Route, SortChoices
from ..target import Target
from ..values import Value

PRODUCT_BUFFERS = 6  # storage buffers of such products: W, x, y, logits, experts and shares
ROWS_OF_A_SUBGROUP = 2
SORT_BUFFERS = 5  # storage buffers: logits, experts, shares, order and tiles


def route_into_experts(graph: Graph, target: Target) -> int:
    """Fuses the choice of experts into the first products with experts.

    before
        %0 = gemm(x)  [router]
        %1, %2 = route(%0)  [router]
        %3 = expert_products(x, %1)  [gate up]
        %4 = expert_sum(%3, %1, %2)  [down]

    after
        %0 = gemm(x)  [router]
        %3, %1, %2 = expert_products(x, %0)  [gate up]  +route
        %4 = expert_sum(%3, %1, %2)  [down]

    For few rows the choice is little work, and a separate dispatch for it would leave most of the device idle.

    Condition: the products are the first to read the choice, use unsorted choices, and their subgroups hold the logits
    of all experts in registers. An expert's score depends on its own logit only: there are no groups, and scores with a
    selection bias are not a softmax. The input is not scaled by the shares, which are not known yet.
    """
    fired = 0
    for node in list(graph.nodes) if target.tuning.fusion.fuses_routing else []:
        if not isinstance(node.op, Route):
            continue
        reader = next(iter(graph.readers(node.op.routing.experts)), None)
        if reader and isinstance(reader.op, ExpertProducts) and _products_rank(reader, reader.op, node.op, target):
            graph.replace(reader, replace(reader.op, route=node.op))
            graph.remove(node)
            fired += 1
    return fired


def _products_rank(reader: Node, op: ExpertProducts, route: Route, target: Target) -> bool:
    how = route.how
    if op.routing.experts is not route.routing.experts or op.scaled:
        return False
    config, _ = products_config(op, reader.rows, target)
    buffers = PRODUCT_BUFFERS + sum(map(bool, (op.norm, op.biases, op.scales, how.selection_bias, how.answer_scale)))
    return (
        config.norms
        and config.tb == 1
        and subgroups_rank(route, config.subgroup_width)
        and how.used <= config.wg
        and buffers <= target.can.max_storage_buffers
    )


def sort_once(graph: Graph, target: Target) -> int:
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

    Condition: products with experts whose kernels process several choices of one expert at a time. Products with the
    same number of choices share the order.
    """
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


def route_into_sort(graph: Graph, target: Target) -> int:
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
    expert's score depends on its own logit only, as in `route_into_experts`. At most two rows share a subgroup.
    """
    fired = 0
    for node in list(graph.nodes) if target.tuning.fusion.fuses_routing else []:
        if not isinstance(node.op, Route) or not _sort_ranks(node, node.op, target):
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


def _sort_ranks(node: Node, op: Route, target: Target) -> bool:
    can = target.can
    width, extras = can.subgroup_size, (op.how.selection_bias, op.how.answer_scale)
    return (
        subgroups_rank(op, width)
        and op.how.used <= width
        and node.rows <= ROWS_OF_A_SUBGROUP * (can.max_invocations // width)
        and SORT_BUFFERS + sum(map(bool, extras)) <= can.max_storage_buffers
    )
