"""Rules that fuse a convolution into its reader, and that write results directly into a stack."""

from dataclasses import replace

from ...kernels.parts import PART_NEEDS
from ..gemm import choose, norms_whole_rows
from ..nodes import Conv1d, Copy, GatedDeltaRule, Gemm, GroupNorm, Map, ResizeHeads, Ssd
from ..nodes.epilogue import AddResidual, Multiply, SaveState, Scale
from ..nodes.prologue import Convolve
from .rule import ALONE, Condition, Pair, Rule

WRITERS = Conv1d, GroupNorm, Map, ResizeHeads


def _state_untouched(pair: Pair[Conv1d, Gemm | GatedDeltaRule | Ssd]) -> bool:
    between = pair.graph.between(pair.before, pair.node)
    return not any(pair.graph.touches(other, pair.producer.state) for other in between)


UNTOUCHED: dict[str, Condition] = {"no node between them touches the state": _state_untouched}


def _write(pair: Pair[Conv1d | GroupNorm | Map | ResizeHeads, Copy]) -> None:
    pair.into_producer(replace(pair.producer, y=pair.consumer.y))


WRITE_INTO_STACK: Rule[Conv1d | GroupNorm | Map | ResizeHeads, Copy] = Rule(
    "write_into_stack",
    """Convolutions, group norms, resized heads and elementwise ops write directly into the stack that a kernel reads.

    before
        %0 = conv1d(x)  [q]  state q
        %1 = conv1d(x)  [k]  state k
        %2 = conv1d(x)  [v]  state v
        %3, %4 = gemm(x)  [beta decay]
        %5 = copy(%0)
        %6 = copy(%1)
        %7 = copy(%2)
        %9 = gated_delta_rule(%8, %3, %4, x)  state delta

    after
        %5 = conv1d(x)  [q]  state q
        %6 = conv1d(x)  [k]  state k
        %7 = conv1d(x)  [v]  state v
        %3, %4 = gemm(x)  [beta decay]
        %9 = gated_delta_rule(%8, %3, %4, x)  state delta
    """,
    producer=WRITERS,
    consumer=Copy,
    reads=lambda op: (op.x,),
    conditions=ALONE,
    rewrite=_write,
)


def _known(pair: Pair[Conv1d, GatedDeltaRule | Ssd]) -> bool:
    """True if the convolution is over the kernel's input: columns of a projection (Mamba-2), or all columns."""
    conv, op = pair.producer, pair.consumer
    if isinstance(op, Ssd):
        return conv.x is op.projected and not conv.gated
    return conv.first == 0 and conv.x.shape == op.qkv.shape and not conv.bias and not op.stacked


def _binds_taps(pair: Pair[Conv1d, GatedDeltaRule | Ssd]) -> bool:
    return isinstance(pair.consumer, Ssd) or PART_NEEDS["recurrence/qkv/convolved"].met(pair.target.can)


CONVOLUTION_INTO_RECURRENCE: Rule[Conv1d, GatedDeltaRule | Ssd] = Rule(
    "convolution_into_recurrence",
    """In decode, a delta net or Mamba-2's recurrence computes the convolution before it.

    before
        %0 = conv1d(x)  [taps]  state past
        %1, %2, %3 = gemm(x)  [beta decay gate]
        %4 = gated_delta_rule(%0, %1, %2, %3)  state delta

    after
        %1, %2, %3 = gemm(x)  [beta decay gate]
        %4 = gated_delta_rule(x, %1, %2, %3)  [taps]  state delta  state past  +conv1d

    The step does not write the states that it reads, as is the case for every step of the engine.
    """,
    producer=Conv1d,
    consumer=(GatedDeltaRule, Ssd),
    reads=lambda op: (op.qkv if isinstance(op, GatedDeltaRule) else op.xbc,),
    conditions={
        "every sequence has one row": lambda pair: pair.graph.shape.row_each,
        "it has no convolution yet": lambda pair: not pair.consumer.conv,
        "it has taps": lambda pair: bool(pair.producer.weight),
        "it ends with silu": lambda pair: pair.producer.then == "silu",
        "it convolves the input of the kernel": _known,
        "the device binds the taps": _binds_taps,
        **ALONE,
        **UNTOUCHED,
    },
    rewrite=lambda pair: pair.into_consumer(replace(pair.consumer, conv=pair.producer)),
)


def _gated(pair: Pair[Conv1d, Gemm]) -> bool:
    conv = pair.producer
    return bool(conv.gated and conv.weight) and not conv.bias and conv.then == "none"


def _columns(pair: Pair[Conv1d, Gemm]) -> bool:
    return pair.producer.first == 0 and pair.producer.state.shape[1] % 32 == 0


def _plain(pair: Pair[Conv1d, Gemm]) -> bool:
    return len(pair.consumer.products) == 1 and pair.consumer.only(Scale, AddResidual, Multiply, SaveState)


def _kernel_convolves(pair: Pair[Conv1d, Gemm]) -> bool:
    config = choose(pair.consumer, pair.node.rows, pair.target)
    return norms_whole_rows(pair.consumer.plus(Convolve(pair.producer)), pair.node.rows, config, pair.target)


CONVOLUTION_INTO_PRODUCT: Rule[Conv1d, Gemm] = Rule(
    "convolution_into_product",
    """A product convolves the row that it reads, for the gated convolution of LFM2.

    before
        %0 = gemm(x)  [in]
        %1 = conv1d(%0)  [taps]  state past
        %2 = gemm(%1, x)  [out]

    after
        %0 = gemm(x)  [in]
        %2 = gemm(%0, x)  [out]  state past  +conv1d

    Every workgroup convolves the row while it stages it, and the first one replaces the state. A separate dispatch
    would be mostly overhead. The step does not write the state that it reads; this holds for every step of the engine.
    """,
    producer=Conv1d,
    consumer=Gemm,
    reads=lambda op: (op.products[0].x,),
    conditions={
        "steps have one row": lambda pair: pair.graph.shape.one_row,
        "the device is faster with this fusion": lambda pair: pair.target.tuning.fusion.fuses_token_shift,
        "it has gates, and neither bias nor activation": _gated,
        "it is over all columns, in whole chunks": _columns,
        "the product has one matrix and no norm": _plain,
        "the kernel sees whole rows": _kernel_convolves,
        **ALONE,
        **UNTOUCHED,
    },
    rewrite=lambda pair: pair.into_consumer(pair.consumer.plus(Convolve(pair.producer))),
)
