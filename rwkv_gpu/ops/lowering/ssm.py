"""Lowering of state space models."""

import math
from collections.abc import Mapping

import numpy as np

from ...gpu.merge import lanes as workgroup_lanes
from ...gpu.shader import Constant
from ...kernels.matrix_tiles import matrix_units
from ...kernels.parts import STORES_QUANTISED
from ..graph import Node
from ..nodes import GroupNorm, SelectiveScan, Ssd
from ..state_space import BLOCK_FLOATS, MAX_TOKENS, ChunksOnMatrixUnits, lanes_and_rows
from ..values import CachedTensor, JoinedVectors, Operand
from .context import Lowering
from .states import state_part, through_rows, written

SCAN_LANES = 64  # channels of a workgroup: few, so that even narrow models fill a device


def ssd(to: Lowering, node: Node, op: Ssd) -> None:
    own, operands, nbytes = _ssd_inputs(to, op)
    if chunks := _chunks_on_matrix_units(to, op):
        _ssd_on_matrix_units(to, node, op, chunks, own, operands)
    else:
        _ssd_by_rows(to, node, op, own, operands, nbytes)


def _ssd_inputs(to: Lowering, op: Ssd) -> tuple[dict[str, Constant], dict[str, Operand], int]:
    """Constants and operands common to all kernels of the op, and the bytes of its parameters."""
    heads, p = op.state.shape[0], op.parameters
    names: tuple[str | None, ...] = (p.dt_bias.name, p.a.name, p.d.name)
    lengths: tuple[int, ...] = (heads, heads, heads)
    own: dict[str, Constant] = {"G": op.groups, "STRIDE": op.projected.shape[1]}
    operands: dict[str, Operand] = {}
    if op.conv:
        assert op.conv.weight is not None, "Mamba-2's convolution has weights"
        before, channels = op.conv.state.shape
        names += op.conv.weight.name, op.conv.bias.name if op.conv.bias else None
        lengths += channels * (before + 1), channels
        own |= {"PAST": before, "FIRST": op.conv.first}
        operands["past"] = to.memory.states[op.conv.state.name]
    operands["parameters"] = JoinedVectors(names, lengths)
    return own, operands, 4 * sum(lengths)


def _ssd_by_rows(
    to: Lowering, node: Node, op: Ssd, own: Mapping[str, Constant], operands: Mapping[str, Operand], nbytes: int
) -> None:
    """Emits the recurrence token by token; several workgroups per head and sequence share the rows of its state."""
    heads, size, columns = op.state.shape
    lanes_per_row, rows, unroll = lanes_and_rows(size, columns, to.target)
    if op.merges:  # with the workgroup size of the previous dispatch
        rows = math.gcd(size, int(workgroup_lanes(to.dispatches[-1].linked)) // lanes_per_row)
    lanes = rows * lanes_per_row
    block = 1 if to.shape.row_each else min(MAX_TOKENS, lanes, max(1, BLOCK_FLOATS // (2 * (rows + columns + 1))))
    constants: dict[str, Constant] = {
        "H": heads, "P": size, "N": columns, **own,
        "LANES_PER_ROW": lanes_per_row, "SLICE": rows, "UNROLL": unroll, "BLOCK": block, "WG": lanes,
        "SUBGROUP": to.can.subgroup_width, "ROW_EACH": int(to.shape.row_each),
        "INPUTS_FIRST": int(to.shape.row_each and not op.merges),  # merged, Falcon-H1 would be 10% slower
    }  # fmt: skip
    # The kernel computes the sum in any case.
    parts, more, bound = written(to, node, "ssm/output", op.quantises, STORES_QUANTISED[:2])
    xbc = ("ssm/xbc/convolved", "conv/row") if op.conv else ("ssm/xbc/plain",)
    sums = "lib/sum/subgroup" if to.can.subgroup_width > 1 else "lib/sum/single_lane"
    through_rows(
        to,
        node,
        op.state,
        ("ssm/ssd", *parts, *xbc, sums, state_part(to, op.state), "lib/lanes/plain"),
        {**constants, **more},
        {**operands, **bound},
        groups=heads * (size // rows),
        fixed_bytes=nbytes,
        row_flops=heads * size * columns * 6,
        shared_bytes=8 * block * (columns + rows + 1),
    )


def _chunks_on_matrix_units(to: Lowering, op: Ssd) -> ChunksOnMatrixUnits | None:
    """The chunk configuration on matrix units; None if the device or the size of the step does not allow it."""
    wanted = to.tuning.recurrence.state_space_on_matrix_units and to.can.state_space_on_matrix_units
    if not (to.can.fragment and wanted) or op.conv:
        return None
    heads, size, columns = op.state.shape
    found = ChunksOnMatrixUnits(heads, size, columns, op.groups, to.can.fragment, to.can.subgroup_size)
    long = not to.shape.row_each and to.shape.rows >= found.tokens
    return found if long and found.fits(to.can) else None


def _ssd_on_matrix_units(
    to: Lowering,
    node: Node,
    op: Ssd,
    chunks: ChunksOnMatrixUnits,
    own: Mapping[str, Constant],
    operands: Mapping[str, Operand],
) -> None:
    """Emits two dispatches: one for values that the heads of a group share, one that carries heads across chunks."""
    heads, size, columns, side, lanes = chunks.heads, chunks.size, chunks.columns, chunks.side, chunks.lanes
    constants: dict[str, Constant] = {"H": heads, "P": size, "N": columns, **own, **matrix_units(side, lanes)}
    halves, floats = chunks.scratch(to.shape)
    shared: dict[str, Operand] = {"halves": halves, "floats": floats}
    to.emit(
        node,
        op.state.name,
        ("ssm/ssd_scores", "lib/lanes/plain"),
        {**constants, "SHARE": chunks.share, "WG": 4 * lanes},
        shared,
        groups=chunks.slots(to.shape) * op.groups * 4,
        fixed_bytes=0,
        row_flops=2 * chunks.tokens * op.groups * columns,
    )
    through_rows(
        to,
        node,
        op.state,
        ("ssm/ssd_matrix", state_part(to, op.state), "lib/lanes/plain"),
        {**constants, "WG": 8 * lanes},
        {**operands, **shared},
        groups=heads * (size // (2 * side)),
        fixed_bytes=3 * heads * 4,
        row_flops=2 * heads * size * (2 * columns + chunks.tokens),
    )


def selective_scan(to: Lowering, node: Node, op: SelectiveScan) -> None:
    channels, columns = op.state.shape
    across, p = -(-channels // SCAN_LANES), op.parameters
    constants: dict[str, Constant] = {
        "C": channels, "N": columns, "STRIDE": op.projected.shape[1], "ACROSS": across, "WG": SCAN_LANES,
    }  # fmt: skip
    lengths = channels * columns, channels, channels
    parameters = JoinedVectors((p.a.name, p.dt_bias.name, p.d.name), lengths)
    through_rows(
        to,
        node,
        op.state,
        ("ssm/selective_scan", "lib/lanes/plain"),
        constants,
        {"parameters": parameters},
        groups=across,
        fixed_bytes=4 * sum(lengths),
        row_flops=channels * columns * 6,
    )


def group_norm(to: Lowering, node: Node, op: GroupNorm) -> None:
    constants: dict[str, Constant] = {
        "D": op.x.shape[1], "G": op.groups, "EPS": float(op.eps),
        "WG": to.row_lanes(op.x.shape[1] // op.groups, node.rows * op.groups),
    }  # fmt: skip
    width = op.x.shape[1]
    constants["WEIGHTS"] = math.prod(op.weight.shape) if op.weight else width
    ones = CachedTensor(("ones", width), lambda: np.ones(width, np.float32))
    operands: dict[str, Operand] = {} if op.weight else {"weight": ones}
    parts = f"ssm/centre/{'mean' if op.centred else 'none'}", f"ssm/shift/{'each' if op.bias else 'none'}"
    shader = "ssm/group_norm", *parts, f"lib/lanes/{to.tuning.lanes.reduce}"
    to.emit(node, op.label, shader, constants, operands, groups=node.rows * op.groups)
