"""Whatever makes x writes it as float16, too, for products on matrix units.

    before
        %0 = quantise(x)
        %1 = gemm(%0)  [gate_up]  +subgroup_gemm  +quantised_x
        %2 = quantise(%1)
        %3 = gemm(%2)  [down]  +subgroup_gemm  +quantised_x

    after
        %0 = quantise(x)
        %1, %4 = gemm(%0)  [gate_up]  +subgroup_gemm  +quantised_x  +quantise
        %3 = gemm(%4)  [down]  +subgroup_gemm  +quantised_x

No workgroup sees a whole row, so that nobody knows a power of two for it. All rows have the same.

A norm in between becomes two halves: the node that makes x multiplies by its gain and leaves sums of squares, which the
product adds up.

A norm that makes x, maybe the sum of one and a residual, sees whole rows, and does all that the rounding did.

Condition: x is whole steps of 64 columns wide. A product of `subgroup_gemm` or `line_gemm` makes it, or one by head on
matrix units, or attention, a recurrence or a convolution of one row for each sequence, and all that read it are such
products. Before another norm, x is the sum of a residual and a product, or answers of experts; where one dispatch
multiplies and sums these, its workgroups have whole fragments of columns. Products with experts on matrix units do it
for those of `down`.
"""

from dataclasses import replace

from ..graph import Graph, Node, Op
from ..nodes import ExpertProducts, ExpertSum, Gemm, Norm, Quantise
from ..nodes.epilogue import QuantiseResult
from ..nodes.prologue import ReadQuantised
from ..quantising import can_round, reads_units, rounded_in_units, rounds_normed
from ..target import Target
from ..values import Quantised
from ..vocabulary import Rms


def run(graph: Graph, target: Target) -> int:
    """The rounding is gone; the node that makes x does it."""
    fired = 0
    for node in list(graph.nodes):
        if isinstance(node.op, Quantise) and not node.op.out.size:
            fired += _fuse(graph, target, node, node.op)
    return fired


def _fuse(graph: Graph, target: Target, node: Node, op: Quantise) -> bool:
    makers = graph.writers(op.x)
    if len(makers) != 1 or op.widths != ((0, op.x.shape[-1]),) or op.x.offset:
        return False
    [maker] = makers
    if isinstance(maker.op, Norm) and rounds_normed(maker.op, op.norm):
        graph.replace(maker, replace(maker.op, quantises=op.out, next_norm=op.norm))
        graph.remove(node)
        return True
    readers = graph.readers(op.out.value)
    if not all(reads_units(reader.op, op.norm) for reader in readers) or not can_round(graph, maker, op, target):
        return False
    configs = [reader.op.config for reader in readers if isinstance(reader.op, Gemm)]
    out = rounded_in_units(op, node.rows, configs[0].fragment if configs and configs[0] else 0)
    graph.replace(maker, _rounding(maker.op, out, op.norm))
    for reader in readers:
        op_of_reader = reader.op
        assert isinstance(op_of_reader, Gemm | ExpertProducts | ExpertSum)
        if isinstance(op_of_reader, Gemm):
            graph.replace(reader, op_of_reader.plus(ReadQuantised(out)))
        else:
            graph.replace(reader, replace(op_of_reader, quantised_x=out))
    graph.remove(node)
    return True


def _rounding(op: Op, out: Quantised, norm: Rms | None) -> Op:
    next_gain = norm.weight if norm else None
    if isinstance(op, Gemm):
        return op.plus(QuantiseResult(out, next_gain))
    if isinstance(op, ExpertSum):
        return replace(op, quantises=out, next_gain=next_gain)
    return replace(op, quantises=out)  # type: ignore[call-arg]
