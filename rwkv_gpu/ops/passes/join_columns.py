"""Two products that are added to one residual are one product, over the columns of both matrices.

    before
        %0 = gemm(x)  [first_gates]  +gemv_int
        %1 = gemm(x)  [second_gates]  +gemv_int  +merge
        %2 = gemm(%0, x)  [first]  +gemv_int
        %3 = gemm(%1, %2)  [second]  +gemv_int
        %4 = gemm(%3)  [b]  +gemv_int  +norm

    after
        %0 = gemm(x)  [first_gates]  +gemv_int
        %1 = gemm(x)  [second_gates]  +gemv_int  +merge
        %3 = gemm(%0, %1, x)  [first second]  +gemv_int  +joined
        %4 = gemm(%3)  [b]  +gemv_int  +norm

The second waited for the first only because it adds what that gives.

Condition: steps of one row, where `gemv_single_pass` multiplies both, in chunks of 32 columns. Nothing else reads what
the first product gives. Both have one scale, no norm and no adapters, and the first has no bias. One binding holds both
matrices, of one format. Of several rows, on matrix units, Falcon-H1 lost 1% by it.
"""

from dataclasses import replace

from ...kernels.parts import JOINED
from ..gemm import binds, choose, fit, gemm_op, shards_of, spanned, whole
from ..graph import Graph, Node
from ..nodes import Gemm
from ..nodes.epilogue import AddResidual, QuantiseResult, Scale
from ..nodes.prologue import JoinColumns, ReadQuantised
from ..quantising import CHUNK
from ..target import Target


def run(graph: Graph, target: Target) -> int:
    """The second of two such products does what the first did, which is gone."""
    fired = 0
    for node in list(graph.nodes) if graph.shape.one_row else []:
        op = gemm_op(node)
        first = graph.writer(op.add) if op and op.add else None
        before = gemm_op(first)
        if op is None or first is None or before is None or not _one_sum(graph, first, before, node, op):
            continue
        joined = _joined(before, op, target)
        if _runs(joined, target):
            graph.replace(node, joined)
            graph.remove(first)
            fired += 1
    return fired


def _one_sum(graph: Graph, first: Node, before: Gemm, node: Node, op: Gemm) -> bool:
    """Whether all that becomes of one product is that another adds it, and what becomes of both sums is the same."""
    if (first.layer, first.picked) != (node.layer, node.picked) or not (_adds(before) and _adds(op)):
        return False
    [one], [other] = before.products, op.products
    merging = gemm_op(next(graph.between(first, node), None))  # with the first
    unseen = graph.readers(one.y) == [node] and not graph.is_output(one.y) and not (merging and merging.merges)
    alike = before.find(Scale) == op.find(Scale) and one.weight.scale == other.weight.scale
    return unseen and alike and one.bias is None


def _adds(op: Gemm) -> bool:
    """Whether a product adds what it sums, and nothing else, to a residual, and reads x as it is."""
    first, *others = op.products
    plain = not (others or op.merges) and op.only(Scale, AddResidual, ReadQuantised, QuantiseResult)
    return plain and first.then == "none" and op.has(AddResidual)


def _joined(before: Gemm, op: Gemm, target: Target) -> Gemm:
    """Both as one, with the kernel that the tuning has for its size."""
    [first], [second] = before.products, op.products
    product = replace(second, x=first.x, weight=first.weight)
    assert before.add is not None
    joined = replace(op, products=(product,)).plus(AddResidual(before.add), JoinColumns(second.x, second.weight))
    return replace(joined, config=choose(joined, 1, target))


def _runs(op: Gemm, target: Target) -> bool:
    """Whether a kernel can multiply both matrices from one binding."""
    assert op.config is not None
    shards = shards_of(op, target)
    if not whole(op, target) or len({(one.parts, one.slice.buffer) for one in shards}) > 1:
        return False
    config, _ = fit(op, op.config, target)
    chunks = all(weight.shape[1] % CHUNK == 0 for weight in op.weights)
    fits = spanned(shards).nbytes <= target.can.max_binding
    return chunks and fits and binds(op, 1, target) and config.takes(JOINED)
