"""A product convolves the row that it reads: the gated convolution of LFM2.

    before
        %0 = gemm(x)  [in]
        %1 = conv1d(%0)  [taps]  state past
        %2 = gemm(%1, x)  [out]

    after
        %0 = gemm(x)  [in]
        %2 = gemm(%0, x)  [out]  state past  +conv1d

Every workgroup convolves the row while it stages it, and the first one replaces the state. A dispatch of its own would
do little more than begin.

Condition: steps of one row, and a product whose kernel sees whole rows. The convolution has gates, and neither bias nor
activation; nothing else reads what it gives. The step writes another state than it reads, as every step of the engine
does.
"""

from ..gemm import choose, gemm_op, norms_whole_rows
from ..graph import Graph, Node
from ..nodes import Conv1d, Gemm
from ..nodes.epilogue import AddResidual, Multiply, SaveState, Scale
from ..nodes.prologue import Convolve
from ..target import Target


def run(graph: Graph, target: Target) -> int:
    """The convolutions are part of the products that read them."""
    if not (graph.shape.one_row and target.tuning.fuses_token_shift):
        return 0
    fired = 0
    for node in list(graph.nodes):
        readers = graph.readers(node.op.y) if isinstance(node.op, Conv1d) else []
        if isinstance(node.op, Conv1d) and len(readers) == 1:
            [reader] = readers
            fused = _fused(graph, node, node.op, reader, target)
            if fused is not None:
                graph.remove(node)
                graph.replace(reader, fused)
                fired += 1
    return fired


def _fused(graph: Graph, node: Node, conv: Conv1d, reader: Node, target: Target) -> Gemm | None:
    """The product with the convolution in its prologue, if its kernel can do that."""
    gemm = gemm_op(reader)
    known = conv.gated and conv.weight and not conv.bias and conv.then == "none" and conv.first == 0
    if gemm is None or not known or conv.state.shape[1] % 32 or graph.is_output(conv.y):
        return None
    plain = len(gemm.products) == 1 and gemm.only(Scale, AddResidual, Multiply, SaveState)
    if not plain or any(graph.touches(other, conv.state) for other in graph.between(node, reader)):
        return None
    fused = gemm.plus(Convolve(conv))
    config = choose(gemm, reader.rows, target)
    return fused if norms_whole_rows(fused, reader.rows, config, target) else None
