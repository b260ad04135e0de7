"""Lowering of recurrences over one matrix per head, except RWKV-7's."""

import math
from collections.abc import Mapping

import numpy as np

from ...gpu.shader import Constant
from ..chunked import Form, chunk_shape
from ..graph import Node
from ..nodes import GatedDeltaRule, Gemm, Lerp, LightningAttention, Wkv6
from ..rwkv import FLOATS_IN_16_BYTES, prompt_lanes
from ..values import CachedTensor, JoinedVectors, Operand, Value
from ..vocabulary import NUMBER, NUMBERS, State
from .chunked import Stage, chunked
from .context import Lowering
from .rwkv import BLOCK_FLOATS, tile_parts
from .states import state_part, through_rows, written

LERP_ROWS = 4  # rows that a lane mixes, loading the matrices once for all
GAIN = "recurrence/gain", "lib/activation"  # parts that gate the normed output of a delta net
LANES_PER_NUMBER = 8  # lanes that share a short row of U in `_lerp_decode`, 16 bytes each


def lerp(to: Lowering, node: Node, op: Lerp) -> None:
    if to.shape.row_each and op.mixes_few_rows:
        _lerp_decode(to, node, op)
        return
    assert isinstance(op.before, Value)
    mixes, width = op.mix.shape
    lanes, rows = to.tuning.lanes.map_lanes, min(LERP_ROWS, node.rows)
    across = -(-width // lanes)  # workgroups of a row
    constants: dict[str, Constant] = {"D": width, "MIXES": mixes, "ROWS": rows, "ACROSS": across, "WG": lanes}
    part, fixed = "rwkv/amount/constant", mixes * width
    if op.low is not None and op.up is not None:
        part = "rwkv/amount/low_rank"
        constants["RANK"] = op.rank
        fixed += op.up.shape[0]
    groups = -(-node.rows // rows) * across
    to.emit(
        node,
        op.label,
        ("rwkv/lerp", part, "lib/lanes/plain"),
        constants,
        groups=groups,
        fixed_bytes=4 * fixed,
    )


def _lerp_decode(to: Lowering, node: Node, op: Lerp) -> None:
    """Emits the mix for one row per sequence; lanes share the rows of U."""
    assert op.low is not None
    assert op.up is not None
    mixes, width = op.mix.shape
    each = min(LANES_PER_NUMBER, to.can.subgroup_width, op.rank // 4 & -(op.rank // 4))
    lanes, rows = to.tuning.lanes.map_lanes, min(LERP_ROWS, node.rows)
    constants: dict[str, Constant] = {
        "D": width, "MIXES": mixes, "RANK": op.rank, "ROWS": rows, "LANES_PER_NUMBER": each, "WG": lanes,
        "SUBGROUP": to.can.subgroup_width,
    }  # fmt: skip
    before, operands = "rwkv/before/row", dict[str, Operand]()
    if isinstance(op.before, State):
        before, operands = "rwkv/before/state", {"shift_state": to.memory.states[op.before.name]}
    to.emit(
        node,
        op.label,
        (
            "rwkv/lerp_decode",
            before,
            f"lib/sum/{'subgroup' if to.can.subgroup_width > 1 else 'single_lane'}",
            "lib/lanes/plain",
        ),
        constants,
        operands,
        groups=-(-node.rows // rows) * -(-mixes * width // (lanes // each)),
        fixed_bytes=4 * (mixes * width + op.up.shape[0]),
    )


def wkv6(to: Lowering, node: Node, op: Wkv6) -> None:
    heads, size, _ = op.state.shape
    own = op.vectors is not None  # RWKV-6's bonus and norm
    constants: dict[str, Constant] = {
        "KEY_HEADS": op.key_heads, "FADES": not own, "SCALE": 1.0 if own else size**-0.5,
    }  # fmt: skip
    norm: dict[str, Constant] = {"EPS": float(op.eps), "NORMED": 1, "READS_OLD": own}
    parts: tuple[str, ...] = ("recurrence/bonus/none", "recurrence/output/gated")
    if own:
        parts = ("recurrence/bonus/first", "recurrence/output/group_norm")
    fixed = 4 * math.prod(op.vectors.shape) if op.vectors else 0
    operands: dict[str, Operand] = {"decays": op.w}
    form = Form(heads, size, removes=False, reads_old=own)
    if shape := chunk_shape(form, to.shape, to.target):
        inputs = Stage(("recurrence/chunk_inputs/wkv6",), constants, operands)
        key_heads: dict[str, Constant] = {"KEY_HEADS": op.key_heads}
        output = Stage(("recurrence/chunk_output/first", *parts), norm | key_heads, {}, fixed)
        chunked(to, node, op.state, shape, inputs, output)
        return
    decay: tuple[str, ...] = ("recurrence/decay/given",)
    if op.lora:
        del operands["decays"]
        decay, own_constants, own_operands = _decay_lora(to, op.lora)
        constants |= own_constants
        operands |= own_operands
    parts = ("recurrence/inputs/wkv6", *decay, "recurrence/step/added", *parts)
    _recurrence(to, node, op, parts, constants | norm, operands, fixed)


def lightning_attention(to: Lowering, node: Node, op: LightningAttention) -> None:
    heads, size, _ = op.state.shape
    decays = CachedTensor(("decays", op.decays), lambda: np.array(op.decays, np.float32))
    operands: dict[str, Operand] = {"decays": decays}
    if shape := chunk_shape(Form(heads, size, removes=False), to.shape, to.target):
        inputs = Stage(("recurrence/chunk_inputs/heads",), {}, operands, 4 * heads)
        chunked(to, node, op.state, shape, inputs, None)
        return
    parts = (
        "recurrence/inputs/heads",
        "recurrence/decay/constant",
        "recurrence/step/added",
        "recurrence/output/plain",
    )
    _recurrence(to, node, op, parts, {"READS_OLD": False}, operands, 4 * heads)


def _decay_lora(to: Lowering, lora: Gemm) -> tuple[tuple[str, ...], dict[str, Constant], dict[str, Operand]]:
    """The parts, constants and operands that compute the decay in decode from the first half of its LoRA."""
    [product] = lora.products
    [shard] = to.weights[product.weight.name].shards
    fours = FLOATS_IN_16_BYTES[to.weights[product.weight.name].format.name]
    weights = {1: "rwkv/decode/f32_weights", 2: "rwkv/decode/f16_weights"}[fours]
    rank = product.weight.shape[1]
    constants: dict[str, Constant] = {
        "RANK": rank, "PIECES": -(-rank // 32) * 8 // fours, "THEN": NUMBER[product.then], **NUMBERS,
    }  # fmt: skip
    operands: dict[str, Operand] = {"low": product.x, "w": shard.slice}
    assert product.bias is not None, "a decay has a bias"
    operands["bias"] = to.vector(product.bias)
    return ("recurrence/decay/low_rank", *shard.parts, weights, "lib/activation"), constants, operands


def gated_delta_rule(to: Lowering, node: Node, op: GatedDeltaRule) -> None:
    heads, size, _ = op.state.shape
    how = op.how
    by_channel = how.bias.shape[0] != heads
    norm: dict[str, Constant] = {"EPS": float(how.eps), "THEN": NUMBER[how.then], **NUMBERS}
    constants: dict[str, Constant] = {
        "KEY_HEADS": how.key_heads, "GROUPED": how.grouped, "STACKED": op.stacked, "EPS": float(how.eps),
        "SHARED": op.beta is op.decay, "GATES": op.beta.shape[1], "DECAYS": op.decay.shape[1],
    }  # fmt: skip
    if how.bound:
        constants["BOUND"] = float(how.bound)
    names = [how.bias.name, how.rate.name, how.norm.name]
    lengths = [how.bias.shape[0], heads, size]
    states: dict[str, Operand] = {}
    if op.conv:
        assert op.conv.weight is not None, "a delta net's convolution has weights"
        constants["PAST"] = op.conv.state.shape[0]
        states["past"] = to.memory.states[op.conv.state.name]
        names.append(op.conv.weight.name)
        lengths.append(op.conv.weight.shape[0])
    operands: dict[str, Operand] = {
        "qkv": op.conv.x if op.conv else op.qkv, "betas": op.beta, "decays": op.decay,
        "vectors": JoinedVectors(tuple(names), tuple(lengths)),
    }  # fmt: skip
    tensors = (
        *(("recurrence/qkv/convolved", "conv/row") if op.conv else ("recurrence/qkv/mixed",)),
        "recurrence/decay/by_channel" if by_channel else "recurrence/decay/by_head",
        "recurrence/delta_tensors",
        *(("recurrence/fade/bounded",) if how.bound else ("recurrence/fade/softplus", "lib/softplus")),
    )
    shape = chunk_shape(Form(heads, size, by_channel=by_channel), to.shape, to.target)
    if shape and not op.conv:
        inputs = Stage(("recurrence/chunk_inputs/delta_rule", *tensors), constants, operands, 4 * sum(lengths))
        own = ("recurrence/chunk_output/gain", "recurrence/output/gated_rms", *GAIN)
        output = Stage(own, norm, {"vectors": to.vector(how.norm)}, 4 * size)
        chunked(to, node, op.state, shape, inputs, output)
        return
    parts = (*tensors, "recurrence/step/delta_rule", *GAIN)
    if _neighbours_have_a_head(to, size):
        kernel = "recurrence/delta_token"
        parts = ("lib/sum/subgroup", *parts)
    else:
        kernel = "recurrence/recurrence"
        parts = ("recurrence/inputs/delta_rule", *parts, "recurrence/output/gated_rms")
    _recurrence(to, node, op, parts, {**constants, **norm}, operands | states, 4 * sum(lengths), kernel)


def _neighbours_have_a_head(to: Lowering, size: int) -> bool:
    """True if neighbouring lanes can hold a head in decode, four numbers each."""
    fours = size // 4
    return to.shape.row_each and 4 <= fours <= to.can.subgroup_width and fours & (fours - 1) == 0


def _recurrence(
    to: Lowering,
    node: Node,
    op: Wkv6 | GatedDeltaRule | LightningAttention,
    parts: tuple[str, ...],
    constants: Mapping[str, Constant],
    operands: Mapping[str, Operand],
    fixed_bytes: int,
    kernel: str = "recurrence/recurrence",
) -> None:
    """Emits a recurrence with one workgroup per head and sequence, which processes the rows in order."""
    heads, size, _ = op.state.shape
    split, rows = prompt_lanes(size, to.target)
    lanes = size // rows * split
    own: dict[str, Constant] = {
        "H": heads, "N": size, "SPLIT": split, "WG": lanes,
        "BLOCK": 1 if to.shape.row_each else min(BLOCK_FLOATS // size, lanes),
    }  # fmt: skip
    y, more, bound = written(to, node, "recurrence/y", op.quantises)
    through_rows(
        to,
        node,
        op.state,
        # Several may have the sum by subgroups.
        (kernel, *dict.fromkeys((*parts, *y, *tile_parts(split, rows))), state_part(to, op.state)),
        {**constants, **own, **more},
        {**operands, **bound},
        groups=heads,
        fixed_bytes=fixed_bytes,
        row_flops=heads * size * size * 8,
    )
