"""Whatever makes x writes it as integers, too.

    before
        %0 = token_shift(x)  [gain]  state previous
        %1 = quantise(%0)
        %2 = gemm(%1)  [key]  +gemm_int8  +quantised_x

    after
        %0, %1 = token_shift(x)  [gain]  state previous  +quantise
        %2 = gemm(%1)  [key]  +gemm_int8  +quantised_x

Condition: a token shift makes x, or a recurrence of one row for each sequence, or a product of `skinny_gemm` whose
workgroups have whole chunks of 32 neighbours. x is wanted as integers and not normed in between, there are several
rows, and the device can bind a buffer more. A token shift, which sees whole rows, writes float16 for matrix units, too.
"""

from dataclasses import replace

from ..gemm import gemm_op
from ..graph import Graph, Node, Op
from ..nodes import Quantise, TokenShift
from ..nodes.epilogue import QuantiseResult
from ..quantising import Recurrence, can_quantise
from ..target import Target
from ..values import Quantised


def run(graph: Graph, target: Target) -> int:
    """The quantisation is gone; the node that makes x does it."""
    fired = 0
    for node in list(graph.nodes):
        if isinstance(node.op, Quantise) and node.op.norm is None:
            fired += _fuse(graph, target, node, node.op)
    return fired


def _fuse(graph: Graph, target: Target, node: Node, op: Quantise) -> bool:
    producers = graph.writers(op.x)
    able = can_quantise(graph, producers[0], target) if len(producers) == 1 else None
    if able is None or not (op.out.size or able.rounds) or able.size not in (0, op.out.size):
        return False
    first = op.x.offset // 4
    if not {first + start: width for start, width in op.widths}.items() <= able.widths.items():
        return False
    starts = {first + start: at for start, at in op.out.starts.items()}
    graph.replace(producers[0], _quantising(producers[0], replace(op.out, starts=starts)))
    graph.remove(node)
    return True


def _quantising(node: Node, out: Quantised) -> Op:
    op, gemm = node.op, gemm_op(node)
    if gemm is not None:
        return gemm.plus(QuantiseResult(out))
    assert isinstance(op, TokenShift | Recurrence)
    return replace(op, quantises=out)
