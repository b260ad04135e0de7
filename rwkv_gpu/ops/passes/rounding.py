"""Activation quantisation: rows of x are converted to integers or float16 once, by their producer if possible."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from ..graph import Graph, Node, Op
from ..moe import multiplies_rounded
from ..nodes import AdapterDown, ExpertProducts, ExpertSum, Gemm, Norm, Quantise, TokenShift
from ..nodes.epilogue import QuantiseResult
from ..nodes.prologue import ReadQuantised
from ..quantising import (
    Quantisable,
    Recurrence,
    can_quantise,
    can_round,
    quantise_for,
    reads_units,
    rounded_in_units,
    rounding_for,
    rounds_normed,
)
from ..target import Target
from ..values import Quantised
from ..vocabulary import Rms
from .rule import Pair, Rule


def quantise_once(graph: Graph, target: Target) -> int:
    """Rows that several products multiply as integers are quantised once.

        before
            %0 = gemm(x)  [a]  +gemm_int8
            %1 = gemm(x)  [b]  +gemm_int8

        after
            %2 = quantise(x)
            %0 = gemm(%2)  [a]  +gemm_int8  +quantised_x
            %1 = gemm(%2)  [b]  +gemm_int8  +quantised_x

    A norm in the prologue of such a product moves into the quantisation, which sees whole rows.

    Condition: the kernel of the product, or of products with experts, reads quantised rows. Without this pass each
    product quantises its own rows.
    """
    made: dict[Hashable, Quantise] = {}
    for node in list(graph.nodes):
        wanted = _wanted_rows(node, target)
        if wanted is None:
            continue
        key = wanted.x, wanted.widths, wanted.out.size, wanted.out.by_rows, wanted.norm
        if key not in made:
            made[key] = wanted
            graph.insert_before(_where(graph, node, wanted), wanted)
        graph.replace(node, _reading(node.op, made[key].out))
    return len(made)


def _where(graph: Graph, node: Node, wanted: Quantise) -> Node:
    """The node to insert the quantisation before; for experts their router, so that the GPU may overlap both."""
    if isinstance(node.op, Gemm) or wanted.x.base:
        return node
    return next(one for one in graph.readers(wanted.x) if (one.layer, one.picked) == (node.layer, node.picked))


def _wanted_rows(node: Node, target: Target) -> Quantise | None:
    """The quantisation that a product needs; None if it reads floats, or rows that are quantised already."""
    op = node.op
    if isinstance(op, Gemm) and not op.has(ReadQuantised) and op.config and op.config.reads_quantised:
        return quantise_for(op, node.rows)
    if isinstance(op, ExpertProducts | ExpertSum) and not op.quantised_x and multiplies_rounded(op, node.rows, target):
        return rounding_for(op, node.rows)
    return None


def _reading(op: Op, x: Quantised) -> Op:
    if isinstance(op, Gemm):
        return op.reading(x)
    if isinstance(op, ExpertProducts):
        return replace(op, norm=None, quantised_x=x)
    assert isinstance(op, ExpertSum)
    return replace(op, quantised_x=x)


def _able(pair: Pair[Op, Quantise]) -> Quantisable | None:
    return can_quantise(pair.graph, pair.before, pair.target)


def _right_size(pair: Pair[Op, Quantise]) -> bool:
    """True if the producer can write integers of the required size, or float16."""
    able, size = _able(pair), pair.consumer.out.size
    return able is not None and bool(size or able.rounds) and able.size in (0, size)


def _own_widths(pair: Pair[Op, Quantise]) -> bool:
    """True if the producer writes each required x as a whole."""
    able, op = _able(pair), pair.consumer
    first = op.x.offset // 4
    return able is not None and {first + start: width for start, width in op.widths}.items() <= able.widths.items()


def _quantise(pair: Pair[Op, Quantise]) -> None:
    op = pair.consumer
    first = op.x.offset // 4
    out = replace(op.out, starts={first + start: at for start, at in op.out.starts.items()})
    pair.into_producer(_writing(pair.producer, out))


def _writing(op: Op, out: Quantised, norm: Rms | None = None) -> Op:
    """The same op, which also writes its result quantised, multiplied by the gain of the next norm if any."""
    next_gain = norm.weight if norm else None
    if isinstance(op, Gemm):
        return op.plus(QuantiseResult(out, next_gain))
    if isinstance(op, ExpertSum):
        return replace(op, quantises=out, next_gain=next_gain)
    return replace(op, quantises=out)  # type: ignore[call-arg]


QUANTISE_IN_PRODUCER: Rule[Op, Quantise] = Rule(
    "quantise_in_producer",
    """The producer of x also writes it as integers.

        before
            %0 = token_shift(x)  [gain]  state previous
            %1 = quantise(%0)
            %2 = gemm(%1)  [key]  +gemm_int8  +quantised_x

        after
            %0, %1 = token_shift(x)  [gain]  state previous  +quantise
            %2 = gemm(%1)  [key]  +gemm_int8  +quantised_x
    """,
    producer=(TokenShift, *Recurrence.__args__, Gemm),
    consumer=Quantise,
    reads=lambda op: (op.x,),
    conditions={
        "no norm is in between": lambda pair: pair.consumer.norm is None,
        "one node writes all of it": lambda pair: len(pair.graph.writers(pair.value)) == 1,
        "the producer can": lambda pair: _able(pair) is not None,
        "it can write these numbers": _right_size,
        "it writes each x as a whole": _own_widths,
    },
    rewrite=_quantise,
)


def _readers(pair: Pair[Op, Quantise]) -> list[Node]:
    return pair.graph.readers(pair.consumer.out.value)


def _rounds(pair: Pair[Op, Quantise]) -> bool:
    return _norms_first(pair) or can_round(pair.graph, pair.before, pair.consumer, pair.target)


def _norms_first(pair: Pair[Op, Quantise]) -> bool:
    """True if the producer is a norm, which sees whole rows and can round them completely."""
    return isinstance(pair.producer, Norm) and rounds_normed(pair.producer, pair.consumer.norm)


def _read_in_units(pair: Pair[Op, Quantise]) -> bool:
    return _norms_first(pair) or all(reads_units(reader.op, pair.consumer.norm) for reader in _readers(pair))


def _round(pair: Pair[Op, Quantise]) -> None:
    wanted = pair.consumer
    if isinstance(pair.producer, Norm):
        pair.into_producer(replace(pair.producer, quantises=wanted.out, next_norm=wanted.norm))
        return
    readers = _readers(pair)
    configs = [reader.op.config for reader in readers if isinstance(reader.op, Gemm)]
    out = rounded_in_units(wanted, pair.node.rows, configs[0].fragment if configs and configs[0] else 0)
    pair.graph.replace(pair.before, _writing(pair.producer, out, wanted.norm))
    for reader in readers:
        op: Any = reader.op
        pair.graph.replace(
            reader, op.plus(ReadQuantised(out)) if isinstance(op, Gemm) else replace(op, quantised_x=out)
        )
    pair.graph.remove(pair.node)


ROUND_IN_PRODUCER: Rule[Op, Quantise] = Rule(
    "round_in_producer",
    """The producer of x also writes it as float16, for products on matrix units.

        before
            %0 = quantise(x)
            %1 = gemm(%0)  [gate_up]  +subgroup_gemm  +quantised_x
            %2 = quantise(%1)
            %3 = gemm(%2)  [down]  +subgroup_gemm  +quantised_x

        after
            %0 = quantise(x)
            %1, %4 = gemm(%0)  [gate_up]  +subgroup_gemm  +quantised_x  +quantise
            %3 = gemm(%4)  [down]  +subgroup_gemm  +quantised_x

    No workgroup of the producer sees a whole row, so no per-row scale is available. All rows share one power of two.

    A norm in between is split: the producer multiplies x by the gain and writes sums of squares, and the product adds
    these up.

    If the producer is itself a norm, with or without a residual, it sees whole rows and rounds them completely.
    """,
    producer=Op,
    consumer=Quantise,
    reads=lambda op: (op.x,),
    conditions={
        "it is float16": lambda pair: not pair.consumer.out.size,
        "one node writes all of it": lambda pair: len(pair.graph.writers(pair.value)) == 1,
        "it is one complete x": lambda pair: pair.consumer.widths == ((0, pair.value.shape[-1]),),
        "it is not a part of a stack": lambda pair: not pair.value.offset,
        "all readers accept rows in a unit": _read_in_units,
        "the producer can": _rounds,
    },
    rewrite=_round,
)


FOUR = 4  # columns that are read at once


def quantise_with_adapters(graph: Graph, target: Target) -> int:  # noqa: ARG001 - it is the same for every device
    """The dispatch that computes A x of LoRA adapters also quantises x for the products that add B (A x).

        before
            %0 = gemm(x)  [s]  +gemv
            %1, %2, %3 = adapter_down(x, %0)  [q.a v.a]  +norm
            %4 = quantise(x)  +norm
            %5, %6 = gemm(%4, %1, %2, %3)  [q v]  +skinny_gemm  +quantised_x  +adapters

        after
            %0 = gemm(x)  [s]  +gemv
            %1, %2, %3, %4 = adapter_down(x, %0)  [q.a v.a]  +norm  +quantise
            %5, %6 = gemm(%4, %1, %2, %3)  [q v]  +skinny_gemm  +quantised_x  +adapters

    Both are small and depend on x only. As separate dispatches, each takes the minimum time of a dispatch.

    Condition: one dispatch computes A x, before any product reads x quantised, with the same norm of x. One node
    writes all of x.
    """
    fired = 0
    for node in list(graph.nodes):
        if not isinstance(node.op, Quantise) or len(graph.writers(node.op.x)) > 1:
            continue
        for down in graph.readers(node.op.x):
            if isinstance(down.op, AdapterDown) and _can_quantise(down, down.op, node, node.op):
                graph.replace(down, replace(down.op, quantise=node.op))
                graph.remove(node)
                fired += 1
                break
    return fired


def _can_quantise(down: Node, low: AdapterDown, node: Node, op: Quantise) -> bool:
    """True if a node computes A x of the x to quantise, runs early enough, and quantises nothing yet."""
    place = down.layer, down.rows, down.picked
    alike = place == (node.layer, node.rows, node.picked) and low.norm == op.norm and down.order < node.order
    whole = low.whole and low.quantise is None and all(width % FOUR == 0 for _, width in op.widths)
    return alike and whole and all(x.root is op.x.root for x in low.xs)
