"""Rows of x as integers, or as float16 with a power of two for each: in a dispatch of their own, or beside another."""

from ...gpu.shader import Constant
from ...kernels.matrix_tiles import fragments_of
from ...kernels.parts import QUANTISING_ROWS, ROUNDING, STORES_QUANTISED
from ..graph import Node
from ..nodes import Quantise
from ..quantising import each
from ..values import Operand, Quantised, UniformTable
from .context import Lowering


def quantise(to: Lowering, node: Node, op: Quantise) -> None:
    """Rows of x as integers, by a workgroup for each row of each x."""
    if not op.out.size:
        round_rows(to, node, op, node.rows * each(op.x))
        return
    norm, own, gain = to.rms_norm(op.norm)
    operands: dict[str, Operand] = {"x": op.x, "quantised": op.out.value, "table": _widths(op)}
    to.emit(
        node,
        "",
        ("linear/quantise_rows", f"lib/lanes/{to.tuning.lanes.reduce}", *STORES_QUANTISED, "lib/rows/vec4", norm),
        {"WG": to.tuning.lanes.row_lanes, "XS": len(op.widths)} | op.out.constants | own,
        operands | gain,
        groups=len(op.widths) * node.rows,
    )


def _widths(op: Quantise, at: int = 0, gap: int = 0) -> UniformTable:
    """Where each x starts in what is bound, its width, where it is put, and the gap between its rows."""
    return UniformTable(tuple(w for start, width in op.widths for w in (at + start, width, op.out.starts[start], gap)))


def beside(to: Lowering, op: Quantise, rows: int) -> tuple[list[str], dict[str, Constant], dict[str, Operand]]:
    """What a kernel links, is specialised by, and binds that quantises rows of x by workgroups of its own."""
    table = _widths(op, op.x.offset // 4)
    constants: dict[str, Constant] = {"XS": len(op.widths)}
    if op.out.size:
        parts = [QUANTISING_ROWS, *STORES_QUANTISED]
        return parts, constants | op.out.constants, {"quantised": op.out.value, "table": table}
    constants |= {"ROWS_EACH": 1} | rounded_constants(to, op.out, rows)
    return [ROUNDING, "lib/matrix_units/rounded"], constants, {"rounded": op.out.value, "table": table}


def round_rows(to: Lowering, node: Node, op: Quantise, rows: int, gap: int = 0) -> None:
    """So many rows of x as float16, by a workgroup for each; in x, `gap` numbers lie between two rows."""
    norm, own, gain = to.rms_norm(op.norm)
    own |= {"WG": to.tuning.lanes.row_lanes, "XS": len(op.widths), "ROWS_EACH": rows // node.rows}
    operands: dict[str, Operand] = {"x": op.x, "rounded": op.out.value, "table": _widths(op, gap=gap)}
    whole_fours = gap % 4 == 0 and all(width % 4 == 0 for _, width in op.widths)
    parts = (
        f"lib/lanes/{to.tuning.lanes.reduce}",
        "lib/rows/vec4" if whole_fours else "lib/rows/scalar",
        norm,
    )
    constants = own | rounded_constants(to, op.out, rows)
    to.emit(node, "", ("linear/round_rows", *parts), constants, operands | gain, groups=len(op.widths) * rows)


def in_units(to: Lowering, out: Quantised, rows: int) -> tuple[dict[str, Constant], dict[str, Operand]]:
    """The constants, and what is bound, of a kernel that writes rows as float16 of whom it sees parts."""
    return rounded_constants(to, out, rows) | {"UNIT": out.unit}, {"rounded": out.value}


def rounded_constants(to: Lowering, out: Quantised, rows: int) -> dict[str, Constant]:
    """What a kernel is specialised by that writes so many rows as float16."""
    side = to.can.fragment
    return {"ROUNDED_ROWS": rows, "S": side, "FRAGMENTS": 0 if out.by_rows else fragments_of(rows, side)}
