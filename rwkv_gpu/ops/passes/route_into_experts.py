"""The first products with experts choose the experts themselves.

    before
        %0 = gemm(x)  [router]
        %1, %2 = route(%0)  [router]
        %3 = expert_products(x, %1)  [gate up]
        %4 = expert_sum(%3, %1, %2)  [down]

    after
        %0 = gemm(x)  [router]
        %3, %1, %2 = expert_products(x, %0)  [gate up]  +route
        %4 = expert_sum(%3, %1, %2)  [down]

Choosing is little work for few choices, and a dispatch for it alone would keep the whole device waiting.

Condition: the products are the first to read the choice, take choices as they come, and their subgroups have the logits
of all experts in registers. An expert is chosen by its own logit: there are no groups, and scores that a bias is added
to are no softmax. The input is not scaled by the shares, which nobody has yet.
"""

from dataclasses import replace

from ..graph import Graph, Node
from ..moe import products_config, subgroups_rank
from ..nodes import ExpertProducts, Route
from ..target import Target

BUFFERS = 6  # that such products bind: W, x, y, the logits, and the two of the choice


def run(graph: Graph, target: Target) -> int:
    """The route is gone; the products with experts hold it."""
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
