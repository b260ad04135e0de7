"""Attention norms q and k over all their heads.

    before
        %0, %1, %2 = gemm(x)  [q k v]
        %3 = norm(%0)  [gain]
        %4 = norm(%1)  [short]
        %5 = copy(%3)
        %6 = copy(%4)
        %7 = copy(%2)
        %9 = attend(%8)  state kv

    after
        %0, %1, %2 = gemm(x)  [q k v]
        %9 = attend(%10)  state kv  +norm

The norms give new values, which are copied into a stack with v. Attention reads the stack that the product has written
instead, and finds both norms while it stages its heads.

Condition: every sequence has one row, and none sees what another one writes; nothing else reads the norms; q, k and v
lie in one stack before them.
"""

from dataclasses import replace

from ..graph import Graph, Node
from ..nodes import Attend, Copy, Norm
from ..target import Target
from ..values import stack
from ..vocabulary import Rms


def run(graph: Graph, _target: Target) -> int:
    """The norms and the copies are gone."""
    fired = 0
    for node in list(graph.nodes) if graph.shape.decode and not graph.shape.shared_pages else []:
        if isinstance(node.op, Attend) and not node.op.cached and node.op.how.norms is None:
            fired += _fuse(graph, node, node.op)
    return fired


def _fuse(graph: Graph, node: Node, op: Attend) -> bool:
    copies = [one for one in graph.nodes if isinstance(one.op, Copy) and one.op.y.base is op.qkv]
    ops = [one.op for one in copies if isinstance(one.op, Copy)]
    if len(ops) != 3:
        return False
    writers = [graph.writer(one.x) for one in ops[:2]]
    norms = [one.op for one in writers if one and isinstance(one.op, Norm) and one.op.plain]
    if len(norms) != 2 or not all(isinstance(norm.how, Rms) for norm in norms):
        return False
    sources = [norms[0].x, norms[1].x, ops[2].x]
    base = sources[0].base
    _, parts = stack(sources[0].shape[0], [source.shape[1] for source in sources])
    placed = base is not None and all(source.base is base for source in sources)
    if base is None or not placed or [source.offset for source in sources] != [part.offset for part in parts]:
        return False
    if any(len(graph.readers(norm.y)) != 1 or graph.is_output(norm.y) for norm in norms):
        return False
    for one in (*copies, *(writer for writer in writers if writer)):
        graph.remove(one)
    q, k = norms[0].how, norms[1].how
    assert isinstance(q, Rms)
    assert isinstance(k, Rms)
    graph.replace(node, replace(op, qkv=base, whole_norms=(q, k)))
    return True
