"""A delta net that decodes computes the convolution before it.

    before
        %0 = conv1d(x)  [taps]  state past
        %1, %2, %3 = gemm(x)  [beta decay gate]
        %4 = gated_delta_rule(%0, %1, %2, %3)  state delta

    after
        %1, %2, %3 = gemm(x)  [beta decay gate]
        %4 = gated_delta_rule(x, %1, %2, %3)  [taps]  state delta  state past  +conv1d

Condition: one row for each sequence, and a device that binds enough buffers. Nothing else reads what the convolution
gives. The step writes other states than it reads, as every step of the engine does.
"""

from dataclasses import replace

from ...kernels.parts import PART_NEEDS
from ..graph import Graph, Node
from ..nodes import Conv1d, GatedDeltaRule
from ..target import Target

PART = "recurrence/qkv/convolved"


def run(graph: Graph, target: Target) -> int:
    """The convolutions are part of the delta rules that read them."""
    if not graph.shape.row_each or not PART_NEEDS[PART].met(target.can):
        return 0
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, GatedDeltaRule) or op.conv or op.stacked:
            continue
        writer = graph.writer(op.qkv)
        if writer and isinstance(writer.op, Conv1d) and _fits(graph, writer, writer.op, node, op):
            graph.remove(writer)
            graph.replace(node, replace(op, conv=writer.op))
            fired += 1
    return fired


def _fits(graph: Graph, writer: Node, conv: Conv1d, node: Node, op: GatedDeltaRule) -> bool:
    """Whether it is over all columns, as the kernel computes it, and the rule is its only reader."""
    whole = conv.first == 0 and conv.x.shape == op.qkv.shape and not conv.bias and conv.then == "silu"
    alone = graph.readers(op.qkv) == [node] and not graph.is_output(op.qkv)
    untouched = not any(graph.touches(other, conv.state) for other in graph.between(writer, node))
    return bool(conv.weight) and whole and alone and untouched
