"""Merges independent products of several formats into one dispatch.

    before
        %0, %1 = gemm(x)  [q k]
        %2 = gemm(x)  [v]

    after
        %0, %1 = gemm(x)  [q k]  +gemv
        %2 = gemm(x)  [v]  +gemv  +merge

A kernel multiplies one format. The first workgroups of a merged dispatch run one kernel, the others the next. All
workgroups have the number of lanes that is best for the product with the most work.

Condition: neighbours in a layer that do not depend on each other, in steps of few rows. With several rows, a merged
kernel needs the registers of both and is slower than two that overlap. Such products are merged only if they write
parts of one stack, because then the second dispatch would wait for the first.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..gemm import choose, gemm_op, needs, shards_of, whole
from ..graph import Graph, Node
from ..nodes import Gemm
from ..target import Target


def run(graph: Graph, target: Target) -> int:
    """Marks each product of a run except the first, and gives all of them one workgroup size."""
    fired = 0
    for nodes in _runs(graph, target):
        ops = [node.op for node in nodes if isinstance(node.op, Gemm)]
        for i, (node, op) in enumerate(zip(nodes, _alike(ops, nodes[0].rows, target), strict=True)):
            graph.replace(node, replace(op, merges=i > 0))
            fired += i > 0
    return fired


def _runs(graph: Graph, target: Target) -> list[list[Node]]:
    """Runs of neighbouring products that may share a dispatch."""
    runs: list[list[Node]] = []
    last: list[Node] = []
    for node in graph.nodes:
        if last and gemm_op(node) and all(_independent(one, node, graph) for one in last) and _few(node, target):
            last.append(node)
            continue
        last = [node] if gemm_op(node) else []
        runs.append(last)
    return [run for run in runs if len(run) > 1]


def _few(node: Node, target: Target) -> bool:
    return node.rows <= target.tuning.fusion.merged_rows


def _independent(one: Node, other: Node, graph: Graph) -> bool:
    """True if two products are independent, and one dispatch for both is faster than two."""
    if one.layer != other.layer or needs(other, one):
        return False
    if set(one.op.states_written) & set(other.op.states_read) or set(one.op.states_read) & set(other.op.states_written):
        return False
    made = {value.root for value in one.op.writes}
    return graph.shape.one_row or any(value.root in made for value in other.op.writes)


def _alike(ops: Sequence[Gemm], rows: int, target: Target) -> list[Gemm]:
    """The same products with one workgroup size, if the device can run all of them with it."""
    if not all(whole(op, target) for op in ops):
        return list(ops)
    own = [choose(op, rows, target) for op in ops]
    work = [sum(shard.slice.nbytes for shard in shards_of(op, target)) for op in ops]
    lead = own[work.index(max(work))]
    packed = [shards_of(op, target)[0].packed for op in ops]
    alike = [target.tuning.merged(lead, config, each) for config, each in zip(own, packed, strict=True)]
    fits = all(config.runs_on(target.can) for config in alike)
    return [replace(op, config=config) for op, config in zip(ops, alike if fits else own, strict=True)]
