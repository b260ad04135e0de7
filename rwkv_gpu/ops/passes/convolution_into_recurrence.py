"""A recurrence that decodes computes the convolution before it: a delta net, or Mamba-2's.

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
from ..nodes import Conv1d, GatedDeltaRule, Ssd
from ..target import Target

DELTA_PART = "recurrence/qkv/convolved"


def run(graph: Graph, target: Target) -> int:
    """The convolutions are part of the recurrences that read them."""
    if not graph.shape.row_each:
        return 0
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, GatedDeltaRule | Ssd) or op.conv:
            continue
        writer = graph.writer(op.qkv if isinstance(op, GatedDeltaRule) else op.xbc)
        if writer and isinstance(writer.op, Conv1d) and _fits(graph, target, writer, writer.op, node, op):
            graph.remove(writer)
            graph.replace(node, replace(op, conv=writer.op))
            fired += 1
    return fired


def _fits(graph: Graph, target: Target, writer: Node, conv: Conv1d, node: Node, op: GatedDeltaRule | Ssd) -> bool:
    """Whether it is as the kernel computes it, and the recurrence is its only reader."""
    if isinstance(op, Ssd):
        known = conv.x is op.projected and not conv.gated
    else:  # over all columns of its own x
        known = conv.first == 0 and conv.x.shape == op.qkv.shape and not conv.bias and not op.stacked
        known = known and PART_NEEDS[DELTA_PART].met(target.can)
    alone = graph.readers(conv.y) == [node] and not graph.is_output(conv.y)
    untouched = not any(graph.touches(other, conv.state) for other in graph.between(writer, node))
    return known and bool(conv.weight) and conv.then == "silu" and alone and untouched
