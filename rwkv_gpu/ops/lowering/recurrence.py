"""Recurrences over a matrix for each head, other than RWKV-7's, as dispatches."""

import math
from collections.abc import Mapping

from ...gpu.cost import ContextCost
from ...gpu.shader import Constant
from ..chunked import Form, chunk_shape
from ..graph import Node
from ..nodes import GatedDeltaRule, Lerp, Wkv6
from ..rwkv import prompt_spread
from ..values import JoinedVectors, Operand
from ..vocabulary import ACTIVATIONS, NUMBERS
from .chunked import Stage, chunked
from .context import Lowering
from .rwkv import BLOCK_FLOATS, SOFTWARE_ROWS

LERP_ROWS = 4  # that a lane mixes, so that it loads the matrices once for all


def lerp(to: Lowering, node: Node, op: Lerp) -> None:
    mixes, width = op.mix.shape
    lanes, rows = to.tuning.map_lanes, min(LERP_ROWS, node.rows)
    across = -(-width // lanes)  # workgroups of a row
    constants: dict[str, Constant] = {"D": width, "MIXES": mixes, "ROWS": rows, "ACROSS": across, "WG": lanes}
    operands: dict[str, Operand] = {
        "x": op.x, "before": op.before, "mix": to.vector(op.mix), "y": op.ys[0].root,
    }  # fmt: skip
    part, fixed = "rwkv/amount/constant", mixes * width
    if op.low is not None and op.up is not None:
        part = "rwkv/amount/low_rank"
        constants["RANK"] = op.low.shape[1] // mixes
        operands |= {"low": op.low, "up": to.vector(op.up)}
        fixed += op.up.shape[0]
    groups = -(-node.rows // rows) * across
    to.emit(
        node,
        op.label,
        ("rwkv/lerp", part, "lib/lanes/plain"),
        constants,
        operands,
        groups=groups,
        fixed_bytes=4 * fixed,
    )


def wkv6(to: Lowering, node: Node, op: Wkv6) -> None:
    heads, size, _ = op.state.shape
    own = op.vectors is not None  # RWKV-6's bonus and norm
    constants: dict[str, Constant] = {
        "KEY_HEADS": op.key_heads, "FADES": not own, "SCALE": 1.0 if own else size**-0.5,
    }  # fmt: skip
    norm: dict[str, Constant] = {"EPS": float(op.eps), "NORMED": 1, "READS_OLD": own}
    vectors: dict[str, Operand] = {"vectors": to.vector(op.vectors)} if op.vectors else {}
    parts: tuple[str, ...] = ("recurrence/bonus/none", "recurrence/output/gated")
    if own:
        parts = ("recurrence/bonus/first", "recurrence/output/group_norm")
    fixed = 4 * math.prod(op.vectors.shape) if op.vectors else 0
    operands: dict[str, Operand] = {"rkvg": op.rkvg, "decays": op.w}
    form = Form(heads, size, size, removes=False, reads_old=own)
    if shape := chunk_shape(form, to.shape, to.target):
        inputs = Stage(("recurrence/chunk_inputs/wkv6",), constants, operands)
        key_heads: dict[str, Constant] = {"KEY_HEADS": op.key_heads}
        output = Stage(("recurrence/chunk_output/first", *parts), norm | key_heads, {"rkvg": op.rkvg, **vectors}, fixed)
        chunked(to, node, op.state, op.y, shape, inputs, output)
        return
    parts = ("recurrence/inputs/wkv6", "recurrence/decay/given", "recurrence/step/added", *parts)
    _recurrence(to, node, op, parts, constants | norm, {**operands, **vectors, "y": op.y}, fixed)


def gated_delta_rule(to: Lowering, node: Node, op: GatedDeltaRule) -> None:
    heads, size, _ = op.state.shape
    how = op.how
    by_channel = how.bias.shape[0] != heads
    norm: dict[str, Constant] = {"EPS": float(how.eps), "THEN": ACTIVATIONS.index(how.then), **NUMBERS}
    constants: dict[str, Constant] = {
        "KEY_HEADS": how.key_heads, "GROUPED": how.grouped, "STACKED": op.stacked, "EPS": float(how.eps),
        "SHARED": op.beta is op.decay, "GATES": op.beta.shape[1], "DECAYS": op.decay.shape[1],
    }  # fmt: skip
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
        "lib/softplus",
    )
    shape = chunk_shape(Form(heads, size, size, by_channel=by_channel), to.shape, to.target)
    if shape and not op.conv:
        inputs = Stage(("recurrence/chunk_inputs/delta_rule", *tensors), constants, operands, 4 * sum(lengths))
        own = ("recurrence/chunk_output/gain", "recurrence/output/gated_rms", "lib/activation")
        output = Stage(own, norm, {"gate": op.gate, "vectors": to.vector(how.norm)}, 4 * size)
        chunked(to, node, op.state, op.y, shape, inputs, output)
        return
    parts = (
        "recurrence/inputs/delta_rule",
        *tensors,
        "recurrence/step/delta_rule",
        "recurrence/output/gated_rms",
        "lib/activation",
    )
    operands |= {"gate": op.gate, "y": op.y, **states}
    _recurrence(to, node, op, parts, {**constants, **norm}, operands, 4 * sum(lengths))


def _recurrence(
    to: Lowering,
    node: Node,
    op: Wkv6 | GatedDeltaRule,
    parts: tuple[str, ...],
    constants: Mapping[str, Constant],
    operands: Mapping[str, Operand],
    fixed_bytes: int,
) -> None:
    """A workgroup for each head of each sequence, which goes through the rows."""
    heads, size, _ = op.state.shape
    assert not to.can.software or node.rows <= SOFTWARE_ROWS, f"over {SOFTWARE_ROWS} rows"
    split, rows = prompt_spread(size, to.target)
    lanes = size // rows * split
    own: dict[str, Constant] = {
        "H": heads, "N": size, "BLOCK": min(BLOCK_FLOATS // size, lanes), "SPLIT": split, "WG": lanes,
    }  # fmt: skip
    shared = (
        "recurrence/row_sum/subgroup" if split > 1 else "recurrence/row_sum/lane",
        {1: "recurrence/tile/one_row", 4: "recurrence/tile/four_rows"}[rows],
        "lib/lanes/plain",
    )
    to.emit(
        node,
        op.state.name,
        ("recurrence/recurrence", *parts, *shared),
        {**constants, **own},
        {**operands, "segments": to.segments, "state": to.memory.states[op.state.name]},
        groups=to.shape.max_segments * heads,
        fixed_bytes=fixed_bytes,
        row_flops=heads * size * size * 8,
        context_cost=ContextCost(sequence_bytes=2 * 4 * heads * size * size),
    )
