"""Lowering of the last rows of each sequence, which a slot keeps from step to step."""

import numpy as np

from ...gpu.shader import Constant
from ..graph import Node
from ..nodes import Concat, KeepRows, RowBefore, ShiftRows
from ..values import Operand, Value
from ..vocabulary import SlotRows
from .context import Lowering


def concat(to: Lowering, node: Node, op: Concat) -> None:
    constants: dict[str, Constant] = {"A": op.x.shape[1], "B": op.y.shape[1], "WG": to.tuning.lanes.map_lanes}
    operands: dict[str, Operand] = {"x": op.x, "y": op.y, "z": op.z}
    to.emit(node, "", ("dense/concat", "lib/lanes/plain"), constants, operands, groups=node.rows)


def row_before(to: Lowering, node: Node, op: RowBefore) -> None:
    _before(to, node, op.rows, op.y, None, op.back)


def keep_rows(to: Lowering, node: Node, op: KeepRows) -> None:
    _keep(to, node, op.rows, op.x)


def shift_rows(to: Lowering, node: Node, op: ShiftRows) -> None:
    """Emits the shift. If each row is a separate segment, rows are stored first, so that later rows read them."""
    if to.shape.row_each:
        _keep(to, node, op.rows, op.x)
        _before(to, node, op.rows, op.y, None)
    else:
        _before(to, node, op.rows, op.y, op.x)
        _keep(to, node, op.rows, op.x)


def _before(to: Lowering, node: Node, rows: SlotRows, y: Value, x: Value | None, back: int = 1) -> None:
    part = "dense/row_within/none" if x is None else "dense/row_within/rows"
    operands = _operands(to, rows) | {"y": y} | ({} if x is None else {"x": x})
    shader = ("dense/row_before", part, "lib/lanes/plain")
    constants = _constants(to, rows) | {"BACK": back}
    to.emit(node, rows.name, shader, constants, operands, groups=node.rows, fixed_bytes=0)


def _keep(to: Lowering, node: Node, rows: SlotRows, x: Value) -> None:
    operands = _operands(to, rows) | {"x": x}
    shader = ("dense/keep_rows", "lib/lanes/plain")
    to.emit(node, rows.name, shader, _constants(to, rows), operands, groups=node.rows, fixed_bytes=0)


def _constants(to: Lowering, rows: SlotRows) -> dict[str, Constant]:
    count, width = rows.shape
    return {"COUNT": count, "D": width, "WG": to.tuning.lanes.map_lanes}


def _operands(to: Lowering, rows: SlotRows) -> dict[str, Operand]:
    return {
        "segments": to.segments,
        "row_segment": to.row_segment,
        "slots": to.graph.input("slots", np.uint32, (to.shape.max_segments,)),
        "kept": to.memory.states[rows.name],
    }
