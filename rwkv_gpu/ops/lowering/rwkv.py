"""Lowering of RWKV-7, token shift and time mix, and of RWKV-4's averages."""

from collections.abc import Mapping

from ...gpu.cost import ContextCost
from ...gpu.shader import Constant
from ...kernels.parts import STORES_QUANTISED
from ..chunked import Form, chunk_shape
from ..graph import Node
from ..nodes import TimeMix, TokenShift, Wkv4
from ..rwkv import FusedLora, decode_lanes, prompt_lanes, takes_one_row
from ..values import JoinedVectors, Operand, Value
from ..vocabulary import NUMBER, NUMBERS
from .chunked import Stage, chunked
from .context import Lowering
from .quantising import rounded_constants
from .states import state_part, through_rows, written

BLOCK_FLOATS = 512  # tokens of a block times head size: limited by 16 KiB of workgroup memory
ABSENT = 0xFFFFFFFF  # index of a missing part of a stack
MAX_MIXES = 6  # maximum number of mixes of one norm
CHANNELS = 64  # channels per workgroup of RWKV-4
GATES = 4  # w, a, the gate and the gate of v


def wkv4(to: Lowering, node: Node, op: Wkv4) -> None:
    width = op.y.shape[1]
    across = -(-width // CHANNELS)
    through_rows(
        to,
        node,
        op.state,
        ("rwkv/wkv4", "lib/lanes/plain"),
        {"D": width, "ACROSS": across, "WG": CHANNELS},
        groups=across,
        fixed_bytes=8 * width,
        row_flops=24 * width,
    )


def token_shift(to: Lowering, node: Node, op: TokenShift) -> None:
    mixes, width = op.mix.shape
    assert op.norm.weight is not None
    assert op.norm.bias is not None
    parts: tuple[str, ...] = ("rwkv/shift_output/floats",)
    constants: dict[str, Constant] = {
        "D": width, "MIXES": mixes, "ROWS": len(op.ys) > mixes, "EPS": float(op.norm.eps),
        "WG": to.row_lanes(width, node.rows),
    }  # fmt: skip
    operands: dict[str, Operand] = {"weight": to.vector(op.norm.weight), "bias": to.vector(op.norm.bias)}
    if op.quantises:
        apart = op.ys[0].part_bytes // 4
        starts = tuple(op.quantises.starts.get(m * apart, ABSENT) for m in range(MAX_MIXES))
        if op.quantises.size:
            parts = ("rwkv/shift_output/quantise", *STORES_QUANTISED)
            constants |= op.quantises.constants | {"STARTS": starts}
            operands["quantised"] = op.quantises.value
        else:
            parts = ("rwkv/shift_output/round", "lib/matrix_units/rounded")
            constants |= rounded_constants(to, op.quantises, node.rows) | {"STARTS": starts}
            operands["rounded"] = op.quantises.value
    to.emit(
        node,
        op.norm.weight.name,
        ("rwkv/norm_shift_mix", f"lib/lanes/{to.tuning.lanes.reduce}", *parts),
        constants,
        operands,
        groups=node.rows,
        fixed_bytes=(mixes + 2) * width * 4,
    )


def time_mix(to: Lowering, node: Node, op: TimeMix) -> None:
    if takes_one_row(op, to.shape, to.target):
        _time_mix_decode(to, node, op)
    else:
        _time_mix_prompt(to, node, op)


def _time_mix_prompt(to: Lowering, node: Node, op: TimeMix) -> None:
    """Emits the time mix for many rows per sequence: in chunks, or token by token with a workgroup per head."""
    heads, size, _ = op.state.shape
    x = op.x
    operands = _operands(op) | {"gates": x.w.root}
    stacked = {"R": x.r, "K": x.k, "V": x.v, "W": x.w, "A": x.a, "G": x.gate, "VG": x.v_gate}
    places: dict[str, Constant] = {name: _part(value) for name, value in stacked.items() if value is not None}
    norm: dict[str, Constant] = {"EPS": float(op.eps), "NORMED": int(op.normed)}
    value = "rwkv/value/first_layer" if x.v_gate is not None else "rwkv/value/own"
    gate = "rwkv/gate/gate" if x.gate is not None else "rwkv/gate/none"
    fixed_bytes = op.vectors.shape[0] * heads * size * 4
    if shape := chunk_shape(Form(heads, size, same_key=False), to.shape, to.target):
        inputs = Stage(("recurrence/chunk_inputs/time_mix", "rwkv/mixed", value), places, operands, fixed_bytes)
        parts = ("recurrence/chunk_output/bonus", "recurrence/output/group_norm", "rwkv/mixed", value, gate)
        output = Stage(parts, {**places, **norm}, operands, fixed_bytes)
        chunked(to, node, op.state, shape, inputs, output)
        return
    split, rows = prompt_lanes(size, to.target)
    lanes = size // rows * split
    own: dict[str, Constant] = {
        "H": heads, "N": size, "BLOCK": min(BLOCK_FLOATS // size, lanes), "SPLIT": split, "WG": lanes,
    }  # fmt: skip
    through_rows(
        to,
        node,
        op.state,
        ("rwkv/time_mix", gate, value, *tile_parts(split, rows), state_part(to, op.state)),
        {**places, **norm, **own},
        operands,
        groups=heads,
        fixed_bytes=fixed_bytes,
        row_flops=heads * size * size * 8,
    )


def tile_parts(split: int, rows: int) -> tuple[str, ...]:
    """The parts that hold `rows` rows of a state in each lane, with `split` lanes per row, and sum over a row."""
    return (
        "recurrence/row_sum/subgroup" if split > 1 else "recurrence/row_sum/lane",
        {1: "recurrence/tile/one_row", 4: "recurrence/tile/four_rows"}[rows],
        "lib/lanes/plain",
    )


def _time_mix_decode(to: Lowering, node: Node, op: TimeMix) -> None:
    """Emits the time mix for one row per sequence; lanes share rows of a state and may compute the fused LoRAs."""
    heads, size, _ = op.state.shape
    lanes_per_row, rows = decode_lanes(size, to.target)
    lora = FusedLora.of(op, op.lora, to.target) if op.lora else None
    constants: dict[str, Constant] = {
        "H": heads, "N": size, "EPS": float(op.eps), "LANES_PER_ROW": lanes_per_row, "ROWS": rows,
        "WG": size // rows * lanes_per_row, "SUBGROUP": to.can.subgroup_width,
    }  # fmt: skip
    operands = _operands(op) | ({"segment": to.segments} if node.rows == 1 else {})
    if lora:
        gates: tuple[str, ...] = _lora_parts(lora)
        constants |= _lora_constants(lora, lanes_per_row)
        operands |= _lora_operands(lora, op, heads * size)
    else:
        gates = ("rwkv/decode/gates",)
        constants["GATES"] = tuple(ABSENT if gate is None else gate.offset // 16 for gate in op.gates)
        operands["stack"] = op.x.w.root
    output, more, bound = written(to, node, "rwkv/decode", op.quantises, STORES_QUANTISED[:2])
    operands |= bound
    constants |= more
    constants |= {name: value.offset // 16 for name, value in {"R": op.x.r, "K": op.x.k, "V": op.x.v}.items()}
    to.emit(
        node,
        op.state.name,
        (
            "rwkv/time_mix_decode",
            "rwkv/decode/single_row" if node.rows == 1 else "rwkv/decode/several_rows",
            *gates,
            "rwkv/decode/first_layer_value" if op.x.v_first is not None else "rwkv/decode/own_value",
            "lib/sum/subgroup" if lanes_per_row > 1 else "lib/sum/single_lane",
            state_part(to, op.state),
            *output,
            "lib/lanes/plain",
        ),
        constants,
        operands,
        groups=node.rows * heads,
        fixed_bytes=5 * heads * size * 4 + (lora.nbytes if lora else 0),
        row_flops=heads * size * (size * 8 + 2 * sum(lora.ranks if lora else ())),
        context_cost=ContextCost(sequence_bytes=2 * op.state.nbytes(to.memory.state_type)),
    )


def _operands(op: TimeMix) -> dict[str, Operand]:
    """The operands that all kernels have in common."""
    operands: dict[str, Operand] = {"rkv": op.x.r.root}
    if op.x.v_gate is not None:
        assert op.x.v_first is not None, "a value gate needs the value of the first layer"
        operands["v_first"] = op.x.v_first
    return operands


def _lora_parts(lora: FusedLora) -> tuple[str, ...]:
    shard = next(shard for shard in lora.shards if shard)
    weights = {1: "rwkv/decode/f32_weights", 2: "rwkv/decode/f16_weights"}[lora.fours]
    return (*shard.parts, "rwkv/decode/lora_gates", weights, "lib/activation")


def _lora_constants(lora: FusedLora, lanes_per_row: int) -> dict[str, Constant]:
    start = lora.slice.offset
    where = (s.moved((s.slice.offset - start) // 16).planes[0] if s else 0 for s in lora.shards)
    own: dict[str, Constant] = {
        "TURNS": lora.loads(lanes_per_row), "FIRST": lora.first_loads(lanes_per_row),
        "RANKS": lora.ranks, "PIECES": lora.pieces, "WHERE": tuple(where),
        "LOWS": tuple(one.x.offset // 16 if one else 0 for one in lora.products),
        "THEN": tuple(NUMBER[one.then] if one else 0 for one in lora.products),
    }  # fmt: skip
    return own | NUMBERS


def _lora_operands(lora: FusedLora, op: TimeMix, width: int) -> Mapping[str, Operand]:
    """The operands of the fused LoRAs. Biases follow the other vectors; a missing one is zeros."""
    biases = tuple(one.bias.name if one and one.bias else None for one in lora.products)
    first = next(one for one in lora.products if one)
    return {
        "lora_inputs": first.x.root,
        "w": lora.slice,
        "vectors": JoinedVectors((op.vectors.name, *biases), (5 * width, *[width] * GATES)),
    }


def _part(value: Value) -> int:
    """The index of a value in its stack of equal parts."""
    return value.offset // value.part_bytes
