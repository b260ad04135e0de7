"""The sum over experts adds the answer of a shared expert times its gate.

    before
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [shared_gate]
        %2 = gemm(x)  [router]
        %3 = gemm(%0)  [last]
        %4, %5, %6 = expert_products(x, %2)  [gate up]  +route
        %7 = scale_rows(%3, %1, x)
        %8 = expert_sum(%4, %5, %6, %7)  [down]

    after
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [shared_gate]
        %2 = gemm(x)  [router]
        %3 = gemm(%0)  [last]
        %4, %5, %6 = expert_products(x, %2)  [gate up]  +route
        %8 = expert_sum(%4, %5, %6, x, %3, %1)  [down]  +gate

Condition: nothing else reads what the gate has scaled, the gate is one number of a row, and something is added as well.
The device binds enough buffers.
"""

from dataclasses import replace

from ...kernels.parts import PART_NEEDS
from ..graph import Graph
from ..nodes import ExpertSum, ScaleRows
from ..target import Target

PART = "moe/residual/shared"


def run(graph: Graph, target: Target) -> int:
    """Gates are part of the sums that read what they have scaled."""
    fired = 0
    for node in list(graph.nodes) if PART_NEEDS[PART].met(target.can) else ():
        op = node.op
        if not isinstance(op, ExpertSum) or op.gate is not None or op.add is None or op.bias:
            continue
        before = graph.writer(op.add)
        scale = before.op if before else None
        alone = graph.readers(op.add) == [node] and not graph.is_output(op.add)
        if (
            before is None
            or not isinstance(scale, ScaleRows)
            or scale.add is None
            or scale.by.shape[1] > 1
            or not alone
        ):
            continue
        graph.remove(before)
        graph.replace(node, replace(op, add=scale.add, shared=scale.x, gate=scale.by))
        fired += 1
    return fired
