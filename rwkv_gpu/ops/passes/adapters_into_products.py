"""Products of few rows add what LoRA adapters give to each row.

    before
        %0 = gemm(x)  [s]
        %1, %2 = adapter_down(x, %0)  [q.a v.a]
        %3, %4 = gemm(x)  [q v]
        %5, %6 = adapter_up(%3, %1, %4, %2)  [q.b v.b]

    after
        %0 = gemm(x)  [s]
        %1, %2, %7 = adapter_down(x, %0)  [q.a v.a]
        %5, %6 = gemm(x, %1, %2, %7)  [q v]  +adapters

One dispatch makes A x of all matrices that read one x, only for rows that have such an adapter. The kernel of the
product adds B (A x) in the place of a bias, over the columns that a row has. So no matrix costs dispatches of its own.
Of gate and up, whose rows alternate, the rows of B do, too.

Condition: at most `Tuning.fusion.adapter_rows` rows, or any where `adapters_as_columns` follows, of whole vec4s;
nothing else reads the product; and the device binds all of it.
"""

from dataclasses import replace

from ..factors import together
from ..gemm import binds, choose, gemm_op
from ..graph import Graph, Node
from ..nodes import AdapterDown, AdapterUp, Gemm
from ..nodes.epilogue import AddAdapters, AddResidual, GatePairs, Scale
from ..nodes.stage import Stage
from ..quantising import MOST_COLUMNS, multiplies_columns
from ..target import Target


def run(graph: Graph, target: Target) -> int:
    """The sums are gone: products make them."""
    fired = 0
    for node in list(graph.nodes):
        if isinstance(node.op, AdapterUp) and (
            node.rows <= target.tuning.fusion.adapter_rows or _as_columns(graph, node, target)
        ):
            fired += fuse(graph, target, node, node.op)
    return fired


def _as_columns(graph: Graph, node: Node, target: Target) -> bool:
    """Whether B of many rows will be further columns of W: see `adapters_as_columns`."""
    assert isinstance(node.op, AdapterUp)
    makers = [gemm_op(graph.writer(one.x)) for one in node.op.products]
    few = all(one.factor is None or one.factor.shape[1] <= MOST_COLUMNS for one in node.op.products)
    return few and all(gemm and multiplies_columns(choose(gemm, node.rows, target)) for gemm in makers)


def fuse(graph: Graph, target: Target, node: Node, op: AdapterUp) -> bool:
    """Whether products add now what a node adds to them."""
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
    """The product that makes what is adapted, with all that comes after it."""
    gemm = gemm_op(maker)
    adapted = {one.x: one for one in op.products}
    if gemm is None or gemm.has(GatePairs) or any(one.y not in adapted for one in gemm.products):
        return None
    if any(reader is not up for one in gemm.products for reader in graph.readers(one.y)):
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
