"""Rules that fuse a reduction into the product after it: the sum with another product, or the runs of attention."""

from dataclasses import replace

from ...kernels.parts import JOINED
from ..gemm import binds, choose, fit, gemm_op, shards_of, spanned, whole
from ..moe import head_config, matrices_of
from ..nodes import AttendLatent, Gemm, HeadLinear
from ..nodes.epilogue import AddResidual, QuantiseResult, Scale
from ..nodes.prologue import JoinColumns, ReadQuantised
from ..quantising import CHUNK
from .rule import ALONE, Pair, Rule


def _adds(op: Gemm) -> bool:
    """True if a product does nothing but add W x to a residual, without activation or prologue."""
    first, *others = op.products
    plain = not (others or op.merges) and op.only(Scale, AddResidual, ReadQuantised, QuantiseResult)
    return plain and first.then == "none" and op.has(AddResidual)


def _one_scale(pair: Pair[Gemm, Gemm]) -> bool:
    before, op = pair.producer, pair.consumer
    return before.find(Scale) == op.find(Scale) and before.products[0].weight.scale == op.products[0].weight.scale


def _not_merging(pair: Pair[Gemm, Gemm]) -> bool:
    """True if the node after the first product does not share its dispatch."""
    merging = gemm_op(next(pair.graph.between(pair.before, pair.node), None))
    return merging is None or not merging.merges


def _concatenated(pair: Pair[Gemm, Gemm]) -> Gemm:
    """Both products as one, with the kernel that the tuning selects for its size."""
    [first], [second], add = pair.producer.products, pair.consumer.products, pair.producer.add
    assert add is not None
    joined = replace(pair.consumer, products=(replace(second, x=first.x, weight=first.weight),))
    joined = joined.plus(AddResidual(add), JoinColumns(second.x, second.weight))
    return replace(joined, config=choose(joined, 1, pair.target))


def _one_binding(pair: Pair[Gemm, Gemm]) -> bool:
    """True if both matrices have one format and fit in one binding."""
    op = _concatenated(pair)
    shards = shards_of(op, pair.target)
    alike = whole(op, pair.target) and len({(one.parts, one.slice.buffer) for one in shards}) == 1
    return alike and spanned(shards).nbytes <= pair.target.can.max_binding


def _kernel_joins(pair: Pair[Gemm, Gemm]) -> bool:
    op = _concatenated(pair)
    assert op.config is not None
    config, _ = fit(op, op.config, pair.target)
    return config.takes(JOINED) and binds(op, 1, pair.target)


JOIN_COLUMNS: Rule[Gemm, Gemm] = Rule(
    "join_columns",
    """Merges two products that are added to one residual into one, over the columns of both matrices.

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

    The second product depends on the first only through the residual that it adds.
    """,
    producer=Gemm,
    consumer=Gemm,
    reads=lambda op: (op.add,),
    conditions={
        "steps have one row": lambda pair: pair.graph.shape.one_row,
        "both are in the same layer": lambda pair: pair.before.layer == pair.node.layer,
        "both have the same rows": lambda pair: pair.before.picked == pair.node.picked,
        "the first only adds to a residual": lambda pair: _adds(pair.producer),
        "the second only adds to a residual": lambda pair: _adds(pair.consumer),
        "the first has no bias": lambda pair: not any(one.bias for one in pair.producer.products),
        "both have the same scale": _one_scale,
        "nothing shares the dispatch of the first": _not_merging,
        **ALONE,
        "columns are whole chunks": lambda pair: all(one.shape[1] % CHUNK == 0 for one in _concatenated(pair).weights),
        "one binding holds both, in one format": _one_binding,
        "the kernel supports columns of two matrices": _kernel_joins,
    },
    rewrite=lambda pair: pair.into_consumer(_concatenated(pair)),
)


def _whole_heads(pair: Pair[AttendLatent, HeadLinear]) -> bool:
    heads, _, width = pair.consumer.weight.shape
    return pair.consumer.x.shape[1] == heads * width


def _gathers_rows(pair: Pair[AttendLatent, HeadLinear]) -> bool:
    """True if each workgroup stages the whole row of a head and has a lane for each of its vec4s."""
    weight = pair.consumer.weight
    configs = [head_config(each, 1, pair.target) for each in matrices_of(weight, pair.target)]
    return all(config.gathers_row and 4 * config.wg >= weight.shape[-1] for config in configs)


def _leave_runs(pair: Pair[AttendLatent, HeadLinear]) -> None:
    pair.graph.replace(pair.before, replace(pair.producer, leaves_runs=True))
    pair.graph.replace(pair.node, replace(pair.consumer, reduces_runs=True))


RUNS_INTO_HEADS: Rule[AttendLatent, HeadLinear] = Rule(
    "runs_into_heads",
    """The per-head product after latent attention reduces the runs of a long context.

        before
            %0, %1 = gemm(x)  [q z]  +gemv
            %2 = gemm(x)  [k]  +gemv  +merge
            %3 = write_latent(%1, %0)  writes kv
            %4 = attend_latent(%2, %3)  reads kv
            %5 = head_linear(%4)  [v_up]

        after
            %0, %1 = gemm(x)  [q z]  +gemv
            %2 = gemm(x)  [k]  +gemv  +merge
            %3 = write_latent(%1, %0)  writes kv
            %4 = attend_latent(%2, %3)  reads kv
            %5 = head_linear(%4)  [v_up]  +runs

    A workgroup of attention covers one run of the context. Without this rule a separate dispatch reduces the runs, and
    everything after it waits.
    """,
    producer=AttendLatent,
    consumer=HeadLinear,
    reads=lambda op: (op.x,),
    conditions={
        "steps have one row": lambda pair: pair.graph.shape.one_row,
        "attention still reduces its runs": lambda pair: not pair.producer.leaves_runs,
        "attention has no sinks": lambda pair: pair.producer.how.sinks is None,
        "it reads all heads": _whole_heads,
        "the kernel gathers the row of a head": _gathers_rows,
        **ALONE,
    },
    rewrite=_leave_runs,
)
