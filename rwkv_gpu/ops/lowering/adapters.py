"""LoRA adapters beside products of few rows as dispatches."""

from ...gpu.shader import Constant, Struct
from ...kernels.parts import LOW_IN_UNIT, LOW_NORMED
from ..factors import VEC4, together
from ..graph import Node
from ..nodes import AdapterDown
from ..values import Operand
from .context import Lowering
from .quantising import beside

MOST_FOURS = 8  # of columns, that a workgroup multiplies one after the other
LEAST_LANES, FOURS_OF_A_LANE = 512, 4  # of a workgroup; of 1,024 lanes a multiprocessor runs two at most
# Workgroups that share out the columns of a row: of four adapters of rank 16 each has one four, and none goes through a
# loop. By 16 rows Llama 8B with these on attention loses 14.0% of its steps so, and 16.7% with 4.
LEAST_SHARES = 16


def down(to: Lowering, node: Node, op: AdapterDown) -> None:
    """Workgroups for each row and matrix share out its columns; others may quantise the same rows for products."""
    factors = together(op.factors, to.target)
    assert op.whole, "the others are products"
    assert factors is not None, "only what lies together is one dispatch"
    width, columns = op.xs[0].shape[1], op.scales.shape[1]
    fours = columns // 4
    shares = min(fours, max(LEAST_SHARES, -(-fours // MOST_FOURS)))
    inputs = zip(factors.starts, op.xs, op.lows, strict=True)
    constants: dict[str, Constant] = {
        "WG": _lanes(to, width),
        "ROWS": node.rows,
        "K": width,
        "COLUMN_FOURS": fours,
        "SHARES": shares,
        "A_STRIDE": factors.stride // VEC4,
        "COLUMNS_AT": op.columns.offset // VEC4,
        "INPUTS": tuple(Struct("AdapterInput", (a // VEC4, x.offset // 4, low.offset // VEC4)) for a, x, low in inputs),
    }
    x = op.xs[0].root
    operands: dict[str, Operand] = {"a": factors.slice, "x": x, "low": op.columns.root, "scales": op.scales}
    norm, own, gain = to.rms_norm(op.norm)
    groups, parts = (len(op.xs) * shares + (not op.unit)) * node.rows, ["adapters/alone"]
    if op.unit:
        constants["LOW_UNIT"] = op.unit
    if op.beside:
        parts, others, bound = beside(to, op.beside, node.rows)
        constants, operands = constants | others, operands | bound
        groups += len(op.beside.widths) * node.rows
    to.emit(
        node,
        "+".join(one.name for one in op.factors),
        (
            "adapters/down",
            f"lib/lanes/{to.tuning.lanes.reduce}",
            "lib/rows/vec4",
            norm,
            LOW_IN_UNIT if op.unit else LOW_NORMED,
            *parts,
        ),
        constants | own,
        operands | gain,
        groups=groups,
        row_flops=2 * width * columns * len(op.xs),
    )


def _lanes(to: Lowering, width: int) -> int:
    """Of a workgroup: more where rows are long."""
    wanted = width // 4 // FOURS_OF_A_LANE
    return min(to.tuning.lanes.row_lanes, max(LEAST_LANES, 1 << (wanted - 1).bit_length()))
