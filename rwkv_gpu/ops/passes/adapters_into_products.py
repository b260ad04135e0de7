"""Fuses LoRA adapters into products of few rows.

    before
        %0 = gemm(x)  [s]
        %1, %2 = adapter_down(x, %0)  [q.a v.a]
        %3, %4 = gemm(x)  [q v]
        %5, %6 = adapter_up(%3, %1, %4, %2)  [q.b v.b]

    after
        %0 = gemm(x)  [s]
        %1, %2, %7 = adapter_down(x, %0)  [q.a v.a]
        %5, %6 = gemm(x, %1, %2, %7)  [q v]  +adapters

One dispatch computes A x for all matrices that read the same x, only for rows with such an adapter. The kernel of the
product adds B (A x) like a bias, over the columns that a row uses. So there is no additional dispatch per matrix. For
gate and up with alternating rows, the rows of B alternate too.

Condition: at most `Tuning.fusion.adapter_rows` rows, or any number if `adapters_as_columns` follows, of whole vec4s;
nothing else reads the product; and the device has enough bindings.
"""

from dataclasses import replace

from ..factors import together
from ..gemm import binds, choose, gemm_op
from ..graph import Graph, Node
from ..nodes import AdapterDown, AdapterUp, Gemm
from ..nodes.epilogue import AddAdapters, AddResidual, GatePairs, Scale
from ..nodes.stage import Stage
from ..quantising import MAX_COLUMNS, multiplies_columns
from ..target import Target


def run(graph: Graph, target: Target) -> int:
    """Moves the sums into the products. Returns the number of moves."""
    fired = 0
    for node in list(graph.nodes):
        if isinstance(node.op, AdapterUp) and (
            node.rows <= target.tuning.fusion.adapter_rows or _as_columns(graph, node, target)
        ):
            fired += fuse(graph, target, node, node.op)
    return fired


def _as_columns(graph: Graph, node: Node, target: Target) -> bool:
    """True if `adapters_as_columns` will apply to a step of many rows."""
    assert isinstance(node.op, AdapterUp)
    makers = [gemm_op(graph.writer(one.x)) for one in node.op.products]
    few = all(one.factor is None or one.factor.shape[1] <= MAX_COLUMNS for one in node.op.products)
    return few and all(gemm and multiplies_columns(choose(gemm, node.rows, target)) for gemm in makers)


def fuse(graph: Graph, target: Target, node: Node, op: AdapterUp) -> bool:
    """Moves the sums of a node into its products. Returns whether that was possible."""
    downs = {graph.writer(low) for one in op.products for low in one.lows}
    makers = dict.fromkeys(graph.writer(one.x) for one in op.products)
    if len(downs) != 1:
        return False
    [down] = downs
    if down is None or not isinstance(down.op, AdapterDown) or not _in_one_dispatch(graph, down.op, node, target):
        return False
    fused: dict[Node, Gemm] = {}
    for maker in makers:
        gemm = _adding(graph, node, op, maker, down.op, target)
        if maker is None or gemm is None:
            return False
        fused[maker] = gemm
    graph.remove(node)
    graph.replace(down, replace(down.op, whole=True))
    for maker, gemm in fused.items():
        graph.replace(maker, gemm)
    return True


def _in_one_dispatch(graph: Graph, op: AdapterDown, up: Node, target: Target) -> bool:
    alone = all(reader is up for low in op.lows for reader in graph.readers(low))
    return alone and together(op.factors, target) is not None


def _adding(
    graph: Graph, up: Node, op: AdapterUp, maker: Node | None, down: AdapterDown, target: Target
) -> Gemm | None:
    """The product with its adapters, activation, scale and residual fused; None if that is impossible."""
    gemm = gemm_op(maker)
    adapted = {one.x: one for one in op.products}
    if gemm is None or gemm.has(GatePairs) or any(one.y not in adapted for one in gemm.products):
        return None
    if any(graph.is_output(one.y) or graph.readers(one.y) != [up] for one in gemm.products):
        return None
    own = [adapted[one.y] for one in gemm.products]
    after = tuple(replace(one, y=then.y, then=then.then) for one, then in zip(gemm.products, own, strict=True))
    stages: list[Stage] = [GatePairs()] if op.pairs else []
    if op.scale != 1.0:
        stages.append(Scale(op.scale))
    if gemm.add is None and op.add is not None:
        stages.append(AddResidual(op.add))
    fused = replace(gemm, products=after).minus(Scale).plus(*stages)
    factors = [one.factor for one in own if one.factor]
    if not factors:
        return fused
    fused = fused.plus(AddAdapters(tuple(one.lows for one in own), tuple(one.factor for one in own), down.columns))
    return fused if binds(fused, up.rows, target) and together(factors, target) else None
