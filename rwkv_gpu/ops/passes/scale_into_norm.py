"""A norm scales what it gives.

    before
        %0 = gemm(x)  [down]
        %1 = norm(%0, x)  [gain]
        %2 = map(%1)  [scale]

    after
        %0 = gemm(x)  [down]
        %2 = norm(%0, x)  [gain]

Gemma 4 scales what each layer gives, and its layers end with a norm. A dispatch for that would read and write all rows
once more.

Condition: nothing else reads what the norm gives, and it is an RMS norm.
"""

from dataclasses import replace

from ..graph import Graph
from ..nodes import Map, Norm
from ..target import Target
from ..vocabulary import Rms


def run(graph: Graph, _target: Target) -> int:
    """Scales are gone where norms before them have them."""
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, Map) or op.f != "scale":
            continue
        before = graph.writer(op.inputs[0])
        norm = before.op if before is not None else None
        alone = graph.readers(op.inputs[0]) == [node] and not graph.is_output(op.inputs[0])
        if before is None or not isinstance(norm, Norm) or not isinstance(norm.how, Rms) or not alone:
            continue
        graph.replace(before, replace(norm, y=op.y, after=norm.after * op.numbers[0]))
        graph.remove(node)
        fired += 1
    return fired
