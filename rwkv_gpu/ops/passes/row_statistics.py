"""A product emits statistics of its result row, for products that norm it.

    before
        %0, %1 = gemm(x)  [value]  reads previous  +gemv_int  +token_shift  +store_normed
        %2 = gemm(%0, x, %1)  [output]  writes previous  +gemv_int  +save_state
        %3, %4 = gemm(%2)  [key]  reads next  +gemv_int  +token_shift  +store_normed
        %5 = gemm(%3, %2, %4)  [output]  writes next  +gemv_int  +save_state

    after
        %0, %1 = gemm(x)  [value]  reads previous  +gemv_int  +token_shift  +store_normed
        %2, %6 = gemm(%0, x, %1)  [output]  writes previous  +gemv_int  +save_state  +row_statistics
        %3, %4 = gemm(%2, %6)  [key]  reads next  +gemv_int  +token_shift  +store_normed  +row_statistics_in
        %5 = gemm(%3, %2, %4)  [output]  writes next  +gemv_int  +save_state

Every workgroup that norms a row needs its mean and deviation. It combines them from the statistics that the producer's
workgroups emitted, instead of reading the row and waiting at a barrier.

Condition: steps of one row; the kernel that makes the row is `gemv_int` or `gemv_single_pass`, with one block of rows
for each workgroup; and products after it norm the row in their prologue.
"""

from ...kernels.parts import EMIT_STATISTICS
from ..gemm import binds, blocks_of, fit, gemm_op, shards_of, whole
from ..graph import Graph, Node
from ..nodes import Gemm
from ..nodes.epilogue import EmitStatistics, GatePairs, QuantiseResult
from ..nodes.prologue import LoadStatistics, NormRows, ShiftTokens
from ..target import Target
from ..values import RowStatistics, Value
from ..vocabulary import LayerNorm


def run(graph: Graph, target: Target) -> int:
    """Makes producers of rows emit statistics, and readers load them. Returns the number of producers."""
    fired = 0
    for node in list(graph.nodes) if graph.shape.one_row else []:
        gemm = gemm_op(node)
        if gemm is None or gemm.has(EmitStatistics) or len(gemm.products) != 1:
            continue
        readers = [reader for reader in graph.readers(gemm.products[0].y) if _norms(reader, gemm.products[0].y)]
        emitted = _emitted(gemm, target) if readers else None
        if emitted is None or not all(_binds(reader, emitted, target) for reader in readers):
            continue
        graph.replace(node, gemm.plus(EmitStatistics(emitted)))
        for reader in readers:
            graph.replace(reader, _loading(reader, emitted))
        fired += 1
    return fired


def _norms(reader: Node, y: Value) -> bool:
    """True if a node norms a row by its mean and deviation while it reads it."""
    gemm = gemm_op(reader)
    if gemm is None:
        return False
    shift, norm = gemm.find(ShiftTokens), gemm.find(NormRows)
    if shift is not None:
        return shift.x is y
    return norm is not None and isinstance(norm.how, LayerNorm) and gemm.products[0].x is y


def _emitted(gemm: Gemm, target: Target) -> RowStatistics | None:
    """The statistics that the kernel of a product can emit; None if it cannot."""
    if gemm.config is None or gemm.has(GatePairs, QuantiseResult) or gemm.merges or not whole(gemm, target):
        return None
    config, _ = fit(gemm, gemm.config, target)
    shard, [product] = shards_of(gemm, target)[0], gemm.products
    out = product.weight.shape[0]
    [blocks] = blocks_of([shard], gemm.widths, config.block, config.max_workgroups)
    if not config.takes(EMIT_STATISTICS) or blocks * config.block < out:
        return None
    emitted = RowStatistics(Value((blocks, 2)), blocks, config.block)
    return emitted if binds(gemm.plus(EmitStatistics(emitted)), 1, target) else None


def _binds(reader: Node, emitted: RowStatistics, target: Target) -> bool:
    return binds(_loading(reader, emitted), reader.rows, target)


def _loading(reader: Node, emitted: RowStatistics) -> Gemm:
    gemm = gemm_op(reader)
    assert gemm is not None
    return gemm.plus(LoadStatistics(emitted))
