"""Attention multiplies its answer by a gate.

    before
        %0, %1, %2, %3 = gemm(x)  [q k v gate]
        %5 = attend(%4)  state kv
        %6 = map(%5, %3)  [mul]

    after
        %0, %1, %2, %3 = gemm(x)  [q k v gate]
        %6 = attend(%4, %3)  state kv  +gate

Condition: every sequence has one row, nothing else reads the answer, and the device binds so many buffers.
"""

from dataclasses import replace

from ..graph import Graph
from ..nodes import Attend, Map
from ..target import Target

BUFFERS = 12  # that attention binds at most, with a gate


def run(graph: Graph, target: Target) -> int:
    """Products of an answer and something else are gone."""
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, Map) or op.f != "mul" or target.can.max_storage_buffers < BUFFERS:
            continue
        for answer, gate in (op.inputs, op.inputs[::-1]):
            writer = graph.writer(answer)
            attend = writer.op if writer else None
            if not isinstance(attend, Attend) or attend.gate is not None or not graph.shape.decode:
                continue
            if writer is None or graph.readers(answer) != [node] or graph.is_output(answer):
                continue
            graph.remove(writer)
            graph.replace(node, replace(attend, y=op.y, gate=gate))
            fired += 1
            break
    return fired
