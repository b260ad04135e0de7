"""Merges the last product of a shared expert into the dispatch of the first products with experts.

    before
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [router]
        %2 = gemm(%0, x)  [last]
        %3, %4, %5 = expert_products(x, %1)  [gate up]  +route
        %6 = expert_sum(%3, %4, %5, %2)  [down]

    after
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [router]
        %3, %4, %5 = expert_products(x, %1)  [gate up]  +route
        %2 = gemm(%0, x)  [last]  +gemv  +merge
        %6 = expert_sum(%3, %4, %5, %2)  [down]

Its first reader is the sum over experts. The shared expert's first product and the router's product read the same row
and share another dispatch: `merge_gemms`.

Condition: steps of one row. One dispatch computes the first products with experts, and the last product can run with
their workgroup size.
"""

from dataclasses import replace
from itertools import pairwise

from ..gemm import choose, gemm_op, shards_of, whole
from ..graph import Graph, Node
from ..moe import products_config
from ..nodes import ExpertProducts, ExpertSum, Gemm
from ..nodes.epilogue import SaveState
from ..target import Target


def run(graph: Graph, target: Target) -> int:
    """Moves the product to just after those with experts. Returns the number of moves."""
    fired = 0
    for first, node in pairwise(list(graph.nodes)) if graph.shape.one_row else ():
        op = node.op
        if not isinstance(op, ExpertSum):
            continue
        answer = op.add if op.shared is None else op.shared
        if answer is None or graph.is_output(answer):
            continue
        last = graph.writer(answer)
        if last is None or last.layer != node.layer or graph.readers(answer) != [node]:
            continue
        merged = _merged(last, first, target)
        if merged:
            graph.remove(last)
            graph.insert_before(node, merged)
            fired += 1
    return fired


def _merged(last: Node, first: Node, target: Target) -> Gemm | None:
    """The product with the workgroup size of the products with experts; None if it cannot have it."""
    gemm, products = gemm_op(last), first.op
    if gemm is None or gemm.merges or gemm.has(SaveState) or not whole(gemm, target):
        return None
    if not isinstance(products, ExpertProducts):
        return None
    experts, dispatches = products_config(products, first.rows, target)
    if len(dispatches) != 1 or products.sorted or first.rows > target.tuning.fusion.merged_rows:
        return None
    own = gemm.config or choose(gemm, last.rows, target)
    config = target.tuning.merged(replace(own, wg=experts.wg), own, shards_of(gemm, target)[0].packed)
    if config.wg != experts.wg or not config.runs_on(target.can):
        return None
    return replace(gemm, config=config, merges=True)
