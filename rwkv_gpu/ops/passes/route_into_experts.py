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

Condition: the products are the first to read the choice, use unsorted choices, and their subgroups hold the logits of
all experts in registers. An expert's score depends on its own logit only: there are no groups, and scores with a
selection bias are not a softmax. The input is not scaled by the shares, which are not known yet.
"""

from dataclasses import replace

from ..graph import Graph, Node
from ..moe import products_config, subgroups_rank
from ..nodes import ExpertProducts, Route
from ..target import Target

BUFFERS = 6  # storage buffers of such products: W, x, y, logits, experts and shares


def run(graph: Graph, target: Target) -> int:
    """Moves each route into the products with experts. Returns the number of moves."""
    fired = 0
    for node in list(graph.nodes) if target.tuning.fusion.fuses_routing else []:
        if not isinstance(node.op, Route):
            continue
        reader = next(iter(graph.readers(node.op.routing.experts)), None)
        if reader and isinstance(reader.op, ExpertProducts) and _ranks(reader, reader.op, node.op, target):
            graph.replace(reader, replace(reader.op, route=node.op))
            graph.remove(node)
            fired += 1
    return fired


def _ranks(reader: Node, op: ExpertProducts, route: Route, target: Target) -> bool:
    how = route.how
    if op.routing.experts is not route.routing.experts or op.scaled:
        return False
    config, _ = products_config(op, reader.rows, target)
    buffers = BUFFERS + sum(map(bool, (op.norm, op.biases, op.scales, how.selection_bias, how.answer_scale)))
    return (
        config.norms
        and config.tb == 1
        and subgroups_rank(route, config.subgroup_width)
        and how.used <= config.wg
        and buffers <= target.can.max_storage_buffers
    )
