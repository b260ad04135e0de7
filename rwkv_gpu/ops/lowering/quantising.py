"""Lowering of activation quantisation, to integers or to float16 with a power of two per row.

It is a dispatch of its own, or part of the dispatch of adapters.
"""

from ...gpu.shader import Constant
from ...kernels.matrix_tiles import fragments_of
from ...kernels.parts import QUANTISING_ROWS, ROUNDING, STORES_QUANTISED
from ..graph import Node
from ..nodes import Quantise
from ..quantising import each
from ..values import Operand, Quantised, UniformTable
from .context import Lowering


def quantise(to: Lowering, node: Node, op: Quantise) -> None:
    """Emits the quantisation of x: one workgroup per row of each x."""
    if not op.out.size:
        round_rows(to, node, op, node.rows * each(op.x))
        return
    norm, own, gain = to.rms_norm(op.norm)
    operands: dict[str, Operand] = {"x": op.x, "quantised": op.out.value, "table": _widths(op)}
    to.emit(
        node,
        "",
        ("linear/quantise_rows", f"lib/lanes/{to.tuning.lanes.reduce}", *STORES_QUANTISED, "lib/rows/vec4", norm),
        {"WG": _lanes(to, op, node.rows), "XS": len(op.widths)} | op.out.constants | own,
        operands | gain,
        groups=len(op.widths) * node.rows,
    )


def _lanes(to: Lowering, op: Quantise, rows: int) -> int:
    """The number of lanes that round a row of any x."""
    return to.row_lanes(max(width for _, width in op.widths), len(op.widths) * rows)


def _widths(op: Quantise, at: int = 0) -> UniformTable:
    """A table of each x: its start in the binding, its width, and its place in the result."""
    return UniformTable(tuple(w for start, width in op.widths for w in (at + start, width, op.out.starts[start], 0)))


def quantise_links(to: Lowering, op: Quantise, rows: int) -> tuple[list[str], dict[str, Constant], dict[str, Operand]]:
    """The parts, constants and operands of a kernel that also quantises rows of x, with additional workgroups."""
    table = _widths(op, op.x.offset // 4)
    constants: dict[str, Constant] = {"XS": len(op.widths)}
    if op.out.size:
        parts = [QUANTISING_ROWS, *STORES_QUANTISED]
        return parts, constants | op.out.constants, {"quantised": op.out.value, "table": table}
    constants |= {"ROWS_EACH": 1} | rounded_constants(to, op.out, rows)
    return [ROUNDING, "lib/matrix_units/rounded"], constants, {"rounded": op.out.value, "table": table}


def round_rows(to: Lowering, node: Node, op: Quantise, rows: int) -> None:
    """Emits the rounding of `rows` rows of x to float16, one workgroup each."""
    norm, own, gain = to.rms_norm(op.norm)
    own |= {"WG": _lanes(to, op, rows), "XS": len(op.widths), "ROWS_EACH": rows // node.rows}
    operands: dict[str, Operand] = {"x": op.x, "rounded": op.out.value, "table": _widths(op)}
    whole_fours = all(width % 4 == 0 for _, width in op.widths)
    parts = (
        f"lib/lanes/{to.tuning.lanes.reduce}",
        "lib/rows/vec4" if whole_fours else "lib/rows/scalar",
        norm,
    )
    constants = own | rounded_constants(to, op.out, rows)
    to.emit(node, "", ("linear/round_rows", *parts), constants, operands | gain, groups=len(op.widths) * rows)


def in_units(to: Lowering, out: Quantised, rows: int) -> tuple[dict[str, Constant], dict[str, Operand]]:
    """The constants and operands of a kernel that sees only parts of rows, and writes float16 in a common unit."""
    return rounded_constants(to, out, rows) | {"UNIT": out.unit}, {"rounded": out.value}


def rounded_constants(to: Lowering, out: Quantised, rows: int) -> dict[str, Constant]:
    """The constants of a kernel that writes `rows` rows as float16."""
    side = to.can.fragment
    return {"ROUNDED_ROWS": rows, "S": side, "FRAGMENTS": 0 if out.by_rows else fragments_of(rows, side)}
