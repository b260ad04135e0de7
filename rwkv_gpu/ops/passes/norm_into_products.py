"""Products norm x while they read it.

    before
        %0 = norm(x)  [gain]
        %1, %2 = gemm(%0)  [q k]

    after
        %1, %2 = gemm(x)  [q k]  +norm

An RMS norm costs a product little: the gain goes to x, and the root to the sums at the end. A layer norm needs the mean
first, which only a step of one row finds fast enough.

Condition: the kernel of the product, or what rounds rows for it, sees whole rows of x; the norm has a weight and adds
nothing. A norm that other ops read, too, stays for them.
"""

from dataclasses import replace

from ..gemm import choose, gemm_op, norms_whole_rows
from ..graph import Graph, Node, Op
from ..moe import multiplies_rounded, products_config
from ..nodes import AdapterDown, ExpertProducts, Norm
from ..nodes.epilogue import GatePairs
from ..nodes.prologue import NormRows
from ..target import Target
from ..vocabulary import Rms


def run(graph: Graph, target: Target) -> int:
    """Readers of a norm that can do it read x; a norm that nobody reads any more is gone."""
    fired = 0
    for node in list(graph.nodes):
        norm = node.op
        if not isinstance(norm, Norm) or not norm.plain:
            continue
        readers = graph.readers(norm.y)
        fused = [(reader, _fused(reader, norm, graph, target)) for reader in readers]
        for reader, op in fused:
            if op is not None:
                graph.replace(reader, op)
                fired += 1
        if readers and all(op for _, op in fused) and not graph.is_output(norm.y):
            graph.remove(node)
    return fired


def _fused(reader: Node, norm: Norm, graph: Graph, target: Target) -> Op | None:
    """The reader with the norm in it, if it can do that."""
    if isinstance(reader.op, ExpertProducts):
        return _into_experts(reader, reader.op, norm, target)
    if isinstance(reader.op, AdapterDown):
        return _into_adapters(reader.op, norm)
    gemm = gemm_op(reader)
    if gemm is None or gemm.prologue or any(one.x is not norm.y for one in gemm.products):
        return None
    fused = replace(gemm, products=tuple(replace(one, x=norm.x) for one in gemm.products)).plus(NormRows(norm.how))
    config = choose(gemm, reader.rows, target)
    if isinstance(norm.how, Rms):
        return fused if config.norms and norm.x.shape[1] % 32 == 0 else None
    alone = graph.shape.one_row and target.tuning.fuses_token_shift and not gemm.has(GatePairs)
    alone = alone and norm.how.bias is not None  # which the kernel binds
    return fused if alone and norms_whole_rows(fused, reader.rows, config, target) else None


def _into_adapters(op: AdapterDown, norm: Norm) -> Op | None:
    able = op.whole and all(x is norm.y for x in op.xs)
    return replace(op, xs=(norm.x,) * len(op.xs), norm=norm.how) if able and isinstance(norm.how, Rms) else None


def _into_experts(reader: Node, op: ExpertProducts, norm: Norm, target: Target) -> Op | None:
    config, whole = products_config(op, reader.rows, target)
    able = (whole and config.norms) or multiplies_rounded(op, reader.rows, target)
    able = able and norm.x.shape[1] % 32 == 0
    return replace(op, x=norm.x, norm=norm.how) if able and isinstance(norm.how, Rms) else None
