"""Lowering of ops over several residual streams."""

from ...gpu.shader import Constant
from ..graph import Node
from ..nodes import CorrectStreams, MatchLength, PredictStreams
from ..values import Operand
from .context import Lowering


def predict(to: Lowering, node: Node, op: PredictStreams) -> None:
    operands: dict[str, Operand] = {"x": op.x, "coefs": op.coefs, "y": op.ys[0].root}
    _by_column(to, node, op, ("streams/predict",), {}, operands)


def correct(to: Lowering, node: Node, op: CorrectStreams) -> None:
    residual = "linear/epilogue/no_residual" if op.add is None else "linear/epilogue/residual"
    operands: dict[str, Operand] = {"x": op.x, "coefs": op.coefs, "found": op.found, "y": op.ys[0].root}
    operands |= {} if op.add is None else {"residual": op.add}
    _by_column(to, node, op, ("streams/correct", residual), {"COEFS": op.coefs.shape[1]}, operands)


def match_length(to: Lowering, node: Node, op: MatchLength) -> None:
    constants: dict[str, Constant] = {"D": op.x.shape[1], "WG": to.tuning.lanes.row_lanes}
    operands: dict[str, Operand] = {"x": op.x, "as_long": op.as_long, "y": op.y}
    shader = "streams/match_length", f"lib/lanes/{to.tuning.lanes.reduce}"
    to.emit(node, "", shader, constants, operands, groups=node.rows)


def _by_column(
    to: Lowering,
    node: Node,
    op: PredictStreams | CorrectStreams,
    shader: tuple[str, ...],
    own: dict[str, Constant],
    operands: dict[str, Operand],
) -> None:
    """Emits a kernel with one lane for each column of each row, over all streams."""
    width, lanes = op.ys[0].shape[1], to.tuning.lanes.map_lanes
    constants = {"D": width, "STREAMS": len(op.ys), "WG": lanes} | own
    groups = -(-node.rows * width // lanes)
    to.emit(node, "", (*shader, "lib/lanes/plain"), constants, operands, groups=groups)
