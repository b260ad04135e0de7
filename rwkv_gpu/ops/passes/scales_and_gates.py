"""Rules that fuse a scale, or a multiplication by another value, into the producer of the multiplied value."""

from dataclasses import replace

from ...kernels.parts import PART_NEEDS
from ..nodes import Attend, ExpertSum, Gemm, Map, Norm, ScaleRows
from ..nodes.epilogue import AddResidual, Multiply, Scale
from ..vocabulary import Rms
from .rule import ALONE, Pair, Rule

GATED_ATTENTION_BUFFERS = 12  # maximum storage buffers of attention with a gate


def _scale_norm(pair: Pair[Norm, Map]) -> None:
    norm, scale = pair.producer, pair.consumer
    pair.into_producer(replace(norm, y=scale.y, after=norm.after * scale.numbers[0]))


SCALE_INTO_NORM: Rule[Norm, Map] = Rule(
    "scale_into_norm",
    """A norm scales its result.

    before
        %0 = gemm(x)  [down]
        %1 = norm(%0, x)  [gain]
        %2 = map(%1)  [scale]

    after
        %0 = gemm(x)  [down]
        %2 = norm(%0, x)  [gain]

    Gemma 4 scales the result of each layer, and its layers end with a norm.
    """,
    producer=Norm,
    consumer=Map,
    reads=lambda op: op.inputs[:1],
    conditions={
        "it is a scale": lambda pair: pair.consumer.f == "scale",
        "it is an RMS norm": lambda pair: isinstance(pair.producer.how, Rms),
        **ALONE,
    },
    rewrite=_scale_norm,
)


def _multiply(pair: Pair[Gemm, ScaleRows]) -> None:
    scale, [product] = pair.consumer, pair.producer.products
    gemm = replace(pair.producer, products=(replace(product, y=scale.y),)).plus(Multiply(scale.by))
    pair.into_consumer(gemm if scale.add is None else gemm.plus(AddResidual(scale.add)))


SCALE_INTO_PRODUCT: Rule[Gemm, ScaleRows] = Rule(
    "scale_into_product",
    """A product multiplies its result by another value, by element, and then adds a residual.

    before
        %0, %1 = gemm(x)  [key receptance]
        %2 = gemm(%0)  [value]
        %3 = scale_rows(%2, %1, x)

    after
        %0, %1 = gemm(x)  [key receptance]
        %3 = gemm(%0, %1, x)  [value]  +scaled

    The channel mix of RWKV-6 ends like this. The product that adds x can do more: see `token_shift_into_products`.
    """,
    producer=Gemm,
    consumer=ScaleRows,
    reads=lambda op: (op.x,),
    conditions={
        "each number has its own factor": lambda pair: pair.consumer.by.shape == pair.consumer.x.shape,
        "both have the same rows": lambda pair: pair.before.picked == pair.node.picked,
        "it has one matrix": lambda pair: len(pair.producer.products) == 1,
        "it has no bias": lambda pair: not any(one.bias for one in pair.producer.products),
        "it has no other stage": lambda pair: pair.producer.only(Scale),
        **ALONE,
    },
    rewrite=_multiply,
)


def _gate_attention(pair: Pair[Attend, Map]) -> None:
    gates = [one for one in pair.consumer.inputs if one is not pair.value]
    pair.into_consumer(replace(pair.producer, y=pair.consumer.y, gate=(gates or [pair.value])[0]))


GATE_INTO_ATTENTION: Rule[Attend, Map] = Rule(
    "gate_into_attention",
    """Attention multiplies its result by a gate.

    before
        %0, %1, %2, %3 = gemm(x)  [q k v gate]
        %5 = attend(%4)  state kv
        %6 = map(%5, %3)  [mul]

    after
        %0, %1, %2, %3 = gemm(x)  [q k v gate]
        %6 = attend(%4, %3)  state kv  +gate
    """,
    producer=Attend,
    consumer=Map,
    reads=lambda op: op.inputs if op.f == "mul" and len(op.inputs) == 2 else (),
    conditions={
        "every sequence has one row": lambda pair: pair.graph.shape.decode,
        "it has no gate yet": lambda pair: pair.producer.gate is None,
        "the device binds a gate": lambda pair: pair.target.can.max_storage_buffers >= GATED_ATTENTION_BUFFERS,
        **ALONE,
    },
    rewrite=_gate_attention,
)


def _gate_sum(pair: Pair[ScaleRows, ExpertSum]) -> None:
    scale = pair.producer
    pair.into_consumer(replace(pair.consumer, add=scale.add, shared=scale.x, gate=scale.by))


GATE_INTO_EXPERT_SUM: Rule[ScaleRows, ExpertSum] = Rule(
    "gate_into_expert_sum",
    """The sum over experts adds the result of a shared expert times its gate.

    before
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [shared_gate]
        %2 = gemm(x)  [router]
        %3 = gemm(%0)  [last]
        %4, %5, %6 = expert_products(x, %2)  [gate up]  +route
        %7 = scale_rows(%3, %1, x)
        %8 = expert_sum(%4, %5, %6, %7)  [down]

    after
        %0 = gemm(x)  [first]
        %1 = gemm(x)  [shared_gate]
        %2 = gemm(x)  [router]
        %3 = gemm(%0)  [last]
        %4, %5, %6 = expert_products(x, %2)  [gate up]  +route
        %8 = expert_sum(%4, %5, %6, x, %3, %1)  [down]  +gate
    """,
    producer=ScaleRows,
    consumer=ExpertSum,
    reads=lambda op: (op.add,),
    conditions={
        "the gate is one number per row": lambda pair: pair.producer.by.shape[1] == 1,
        "the producer adds a residual": lambda pair: pair.producer.add is not None,
        "the sum has no gate yet": lambda pair: pair.consumer.gate is None,
        "the experts have no bias": lambda pair: not pair.consumer.bias,
        "the device binds a gate": lambda pair: PART_NEEDS["moe/residual/shared"].met(pair.target.can),
        **ALONE,
    },
    rewrite=_gate_sum,
)
