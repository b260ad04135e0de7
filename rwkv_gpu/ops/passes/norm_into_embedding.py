"""The layer norm of an embedding is computed while its rows are read.

    before
        %0 = embed(x)  [embedding]
        %1 = norm(%0)  [gain]

    after
        %1 = embed(x)  [embedding]  +layer_norm

Condition: nothing else reads the embedding, one binding holds it, and it is of tokens, not of positions.
"""

from dataclasses import replace

from ..graph import Graph
from ..nodes import Embed, Norm
from ..target import Target
from ..vocabulary import LayerNorm


def run(graph: Graph, target: Target) -> int:
    """The embedding norms, and the norm is gone."""
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, Embed) or op.ids is None or len(target.weights[op.weight.name].shards) > 1:
            continue
        readers = graph.readers(op.y)
        norm = readers[0].op if len(readers) == 1 else None
        if isinstance(norm, Norm) and isinstance(norm.how, LayerNorm) and not graph.is_output(op.y):
            graph.remove(readers[0])
            graph.replace(node, replace(op, y=norm.y, norm=norm.how))
            fired += 1
    return fired
