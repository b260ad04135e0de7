"""Merges independent ops of a layer into one dispatch, where each alone would not fill a device."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ..gemm import choose, gemm_op, needs, shards_of, whole
from ..graph import Graph, Node
from ..moe import products_config
from ..nodes import Attend, ExpertProducts, ExpertSum, Gemm, HeadLinear, Route, SortChoices, Ssd, WriteLatent
from ..nodes.epilogue import SaveState
from ..target import Target
from .products_side_by_side import must_precede

CHOOSE = Route, SortChoices, ExpertProducts


def merge_state_space(graph: Graph, target: Target) -> int:
    """Merges a state space that is parallel to attention into the dispatch of attention.

    before
        %0, %1, %2 = gemm(x)  [q k v]
        %3, %4 = gemm(x)  [xbc z]
        %6 = attend(%5)  state kv
        %7 = gemm(%6, x)  [output]
        %8 = ssd(%3, %4)  [rate]  state ssm
        %9 = gemm(%8, %7)  [out]

    after
        %0, %1, %2 = gemm(x)  [q k v]
        %3, %4 = gemm(x)  [xbc z]
        %6 = attend(%5)  state kv
        %8 = ssd(%3, %4)  [rate]  state ssm  +merge
        %7 = gemm(%6, x)  [output]
        %9 = gemm(%8, %7)  [out]

    In a layer of Falcon-H1 both read the same x. They are independent, but in the order of the layer the state space
    would wait for attention and for the product after it.

    Condition: one row per sequence. Nothing between the two writes an input of the state space. In steps of one row
    they share a dispatch if their kernels have one workgroup size; with several rows the GPU overlaps them without
    merging.
    """
    if not graph.shape.row_each:
        return 0
    fired, attention = 0, None
    for node in list(graph.nodes):
        if isinstance(node.op, Attend):
            attention = node
        if not isinstance(node.op, Ssd) or attention is None or attention.layer != node.layer:
            continue
        passed = [*graph.between(attention, node)]
        if passed and not any(must_precede(other, node.op) for other in (attention, *passed)):
            graph.move_before(node, passed[0])
            merges = graph.shape.one_row and node.rows <= target.tuning.fusion.merged_rows
            graph.replace(node, replace(node.op, merges=merges))
            fired += 1
    return fired


def merge_shared_expert(graph: Graph, target: Target) -> int:
    """Merges the last product of a shared expert into the dispatch of the first products with experts.

    before
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [router]
        %2 = gemm(%0, x)  [last]
        %3, %4, %5 = expert_products(x, %1)  [gate up]  +route
        %6 = expert_sum(%3, %4, %5, %2)  [down]

    after
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [router]
        %3, %4, %5 = expert_products(x, %1)  [gate up]  +route
        %2 = gemm(%0, x)  [last]  +gemv  +merge
        %6 = expert_sum(%3, %4, %5, %2)  [down]

    Its first reader is the sum over experts. The shared expert's first product and the router's product read the same
    row and share another dispatch: `merge_gemms`.

    Condition: steps of one row. One dispatch computes the first products with experts, and the last product can run
    with their workgroup size.
    """
    fired = 0
    for first, node in pairwise(list(graph.nodes)) if graph.shape.one_row else ():
        op = node.op
        if not isinstance(op, ExpertSum):
            continue
        answer = op.add if op.shared is None else op.shared
        if answer is None or graph.is_output(answer):
            continue
        last = graph.writer(answer)
        if last is None or last.layer != node.layer or graph.readers(answer) != [node]:
            continue
        merged = _merged(last, first, target)
        if merged:
            graph.remove(last)
            graph.insert_before(node, merged)
            fired += 1
    return fired


def _merged(last: Node, first: Node, target: Target) -> Gemm | None:
    """The product with the workgroup size of the products with experts; None if it cannot have it."""
    gemm, products = gemm_op(last), first.op
    if gemm is None or gemm.merges or gemm.has(SaveState) or not whole(gemm, target):
        return None
    if not isinstance(products, ExpertProducts):
        return None
    experts, dispatches = products_config(products, first.rows, target)
    if len(dispatches) != 1 or products.sorted or first.rows > target.tuning.fusion.merged_rows:
        return None
    own = gemm.config or choose(gemm, last.rows, target)
    config = target.tuning.merged(replace(own, wg=experts.wg), own, shards_of(gemm, target)[0].packed)
    if config.wg != experts.wg or not config.runs_on(target.can):
        return None
    return replace(gemm, config=config, merges=True)


def merge_gemms(graph: Graph, target: Target) -> int:
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


def merge_router(graph: Graph, target: Target) -> int:
    """Merges the product of a router into the dispatch of the product before it.

    before
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [router]
        %2 = gemm(%0, x)  [last]
        %3, %4, %5 = expert_products(x, %1)  [gate up]  +route
        %6 = expert_sum(%3, %4, %5, %2)  [down]

    after
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [router]  +merge
        %2 = gemm(%0, x)  [last]
        %3, %4, %5 = expert_products(x, %1)  [gate up]  +route
        %6 = expert_sum(%3, %4, %5, %2)  [down]

    Neither product fills a device. Lowering gives the router the workgroup size of the product before it, unless that
    has many workgroups.

    Condition: steps of 2 to `Tuning.fusion.merged_batch_rows` rows; for one row, `merge_gemms` does it. Both products
    are in the same layer, and the router multiplies floats.
    """
    fired = 0
    for one, other in pairwise(list(graph.nodes)) if not graph.shape.one_row else ():
        op = _router(other, graph, target)
        if op and gemm_op(one) and one.layer == other.layer and not needs(other, one):
            graph.replace(other, replace(op, merges=True))
            fired += 1
    return fired


def _router(node: Node, graph: Graph, target: Target) -> Gemm | None:
    """The product of a router, if its kernel can run with any workgroup size."""
    op = gemm_op(node)
    if op is None or op.merges or op.has(SaveState) or not whole(op, target):
        return None
    if node.rows > target.tuning.fusion.merged_batch_rows:
        return None
    chosen = all(isinstance(reader.op, CHOOSE) for one in op.products for reader in graph.readers(one.y))
    return op if chosen and choose(op, node.rows, target).entry.any_lanes else None


def merge_latent_write(graph: Graph, target: Target) -> int:
    """Merges the write of latents to their pages into the dispatch of the per-head product before it.

    before
        %0, %1 = gemm(x)  [q z]
        %2 = head_linear(%0)  [k_up]
        %3 = write_latent(%1, %0)  writes kv
        %4 = attend_latent(%2, %3)  reads kv

    after
        %0, %1 = gemm(x)  [q z]
        %2 = head_linear(%0)  [k_up]
        %3 = write_latent(%1, %0)  writes kv  +merge
        %4 = attend_latent(%2, %3)  reads kv

    The two are independent. Writing the latents of few rows occupies one workgroup, and attention would wait for it.

    Condition: steps of at most `Tuning.fusion.merged_batch_rows` rows, and neighbours in a layer.
    """
    fired = 0
    for one, other in pairwise(list(graph.nodes)):
        op = other.op
        near = isinstance(one.op, HeadLinear) and one.layer == other.layer
        if isinstance(op, WriteLatent) and near and other.rows <= target.tuning.fusion.merged_batch_rows:
            graph.replace(other, replace(op, merges=True))
            fired += 1
    return fired
