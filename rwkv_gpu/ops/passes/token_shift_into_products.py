"""Fuses a token shift into the products that read it; a later product that adds x saves the state.

    before
        %0, %1 = token_shift(x)  [gain]  state previous
        %2, %3 = gemm(%0, %1)  [receptance key]
        %4 = gemm(%2, x)  [output]

    after
        %2, %3, %5 = gemm(x)  [receptance key]  reads previous  +token_shift  +store_normed
        %4 = gemm(%2, x, %5)  [output]  writes previous  +save_state

With few rows it is faster if every workgroup norms the rows that it reads than to norm them in a separate dispatch. The
first product also stores the normed row. The state may change only after all products have read it, so a later product
saves it. An op that mixes both rows once more (RWKV-6) reads the stored row and the state.

Condition: each sequence has one row and there are few rows; every reader is a product whose kernel sees whole rows, or
mixes the stored row; a later product adds x; and no other node between them reads or writes the state.
"""

from dataclasses import replace

from ..gemm import choose, gemm_op, norms_whole_rows, shards_of
from ..graph import Graph, Node
from ..nodes import Gemm, Lerp, TokenShift
from ..nodes.epilogue import GatePairs, SaveState
from ..nodes.prologue import ShiftTokens
from ..target import Target
from ..values import Value

GRAIN = 64  # a row must be a multiple of this, so that parts of its stack have the layout of the rows of `mix`
MAX_GROUPS = 300  # maximum number of workgroups that each norm and mix several rows


def run(graph: Graph, target: Target) -> int:
    """Moves each token shift into its readers and a later product. Returns the number of moves."""
    if not target.tuning.fusion.fuses_token_shift:
        return 0
    shape = graph.shape
    if not (shape.one_row or (shape.decode and shape.rows <= target.tuning.fusion.token_shift_rows)):
        return 0
    fired = 0
    for node in list(graph.nodes):
        if isinstance(node.op, TokenShift) and node.op.mix.shape[1] % GRAIN == 0:
            fired += _fuse(graph, target, node, node.op)
    return fired


def _fuse(graph: Graph, target: Target, node: Node, op: TokenShift) -> bool:
    readers = graph.readers(op.ys[0])
    if not readers or graph.is_output(op.ys[0]):
        return False
    normed = Value(op.x.shape)
    fused = [_reading_x(reader, op, normed, i == 0, target) for i, reader in enumerate(readers)]
    saver = _saver(graph, node, op, readers)
    if saver is None or None in fused:
        return False
    for reader, new in zip(readers, fused, strict=True):
        assert new is not None
        graph.replace(reader, new)
    assert isinstance(saver.op, Gemm)
    graph.replace(saver, saver.op.plus(SaveState(normed, op.state)))
    graph.remove(node)
    return True


def _reading_x(reader: Node, op: TokenShift, normed: Value, first: bool, target: Target) -> Gemm | Lerp | None:
    """The reader with the token shift fused into it; None if that is impossible."""
    if isinstance(reader.op, Lerp) and not first:
        same = (reader.op.x, reader.op.before) == op.ys[op.mix.shape[0] :]
        return replace(reader.op, x=normed, before=op.state) if same and reader.op.mixes_few_rows else None
    return _with_prologue(reader, op, normed if first else None, target)


def _with_prologue(reader: Node, op: TokenShift, store: Value | None, target: Target) -> Gemm | None:
    """The product with the token shift in its prologue; None if its kernel does not support that."""
    gemm, mixed = gemm_op(reader), op.ys[: op.mix.shape[0]]
    if gemm is None or gemm.prologue or gemm.has(GatePairs) or any(one.x not in mixed for one in gemm.products):
        return None
    mixes = tuple(mixed.index(one.x) for one in gemm.products)
    fused = gemm.plus(ShiftTokens(op.x, op.norm, op.mix, op.state, mixes, store))
    config = choose(gemm, reader.rows, target)
    groups = sum(-(-shard.rows // config.block) for shard in shards_of(gemm, target))
    few = reader.rows == 1 or min(groups, config.max_workgroups) <= MAX_GROUPS
    return fused if few and norms_whole_rows(fused, reader.rows, config, target) else None


def _saver(graph: Graph, node: Node, op: TokenShift, readers: list[Node]) -> Node | None:
    """The product after all readers that adds x; None if something else touches the state before it."""
    last = readers[-1]
    for adder in graph.readers(op.x):
        gemm = gemm_op(adder)
        if adder.order > last.order and gemm and gemm.add is op.x and not gemm.has(SaveState) and not gemm.prologue:
            touched = any(graph.touches(other, op.state) for other in graph.between(node, adder))
            return None if touched or graph.touches(adder, op.state) else adder
    return None
