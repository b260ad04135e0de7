"""Lowering of the last rows of each sequence, which a slot keeps from step to step."""

import numpy as np

from ...gpu.shader import Constant
from ..graph import Node
from ..nodes import Concat, KeepRows, RowBefore, ShiftRows
from ..vocabulary import SlotRows
from .context import Lowering


def concat(to: Lowering, node: Node, op: Concat) -> None:
    constants: dict[str, Constant] = {"A": op.x.shape[1], "B": op.y.shape[1], "WG": to.tuning.lanes.map_lanes}
    to.emit(node, "", ("dense/concat", "lib/lanes/plain"), constants, groups=node.rows)


def row_before(to: Lowering, node: Node, op: RowBefore) -> None:
    _emit(to, node, op.rows, ("dense/row_before", "dense/row_within/none"), {"BACK": op.back})


def keep_rows(to: Lowering, node: Node, op: KeepRows | ShiftRows) -> None:
    _emit(to, node, op.rows, ("dense/keep_rows",), {})


def shift_rows(to: Lowering, node: Node, op: ShiftRows) -> None:
    """Emits the shift. If each row is a separate segment, rows are stored first, so that later rows read them."""
    if to.shape.row_each:
        keep_rows(to, node, op)
        _emit(to, node, op.rows, ("dense/row_before", "dense/row_within/none"), {"BACK": 1})
    else:
        _emit(to, node, op.rows, ("dense/row_before", "dense/row_within/rows"), {"BACK": 1})
        keep_rows(to, node, op)


def _emit(to: Lowering, node: Node, rows: SlotRows, shader: tuple[str, ...], own: dict[str, Constant]) -> None:
    count, width = rows.shape
    slots = to.graph.input("slots", np.uint32, (to.shape.max_segments,))
    to.emit(
        node, rows.name, (*shader, "lib/lanes/plain"),
        {"COUNT": count, "D": width, "WG": to.tuning.lanes.map_lanes, **own},
        {"slots": slots, "kept": to.memory.states[rows.name]}, groups=node.rows, fixed_bytes=0,
    )  # fmt: skip
