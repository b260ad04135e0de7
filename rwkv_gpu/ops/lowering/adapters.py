"""Lowering of the first half of LoRA adapters, A x, for products of few rows."""

from ...gpu.shader import Constant, Struct
from ...kernels.parts import LOW_IN_UNIT, LOW_NORMED
from ..factors import VEC4, together
from ..graph import Node
from ..nodes import AdapterDown
from ..values import Operand
from .context import Lowering
from .quantising import quantise_links

MAX_FOURS = 8  # vec4s of columns that a workgroup multiplies in a loop, at most
MIN_LANES, FOURS_OF_A_LANE = 512, 4  # per workgroup, per lane; a multiprocessor runs two workgroups of 1,024 lanes
# Minimum number of workgroups that share the columns of a row. With four adapters of rank 16, each workgroup has one
# vec4 and needs no loop. At batch 16, such adapters on attention cost 14.0% of a step of Llama 8B; with a minimum of 4,
# they cost 16.7%.
MIN_SHARES = 16


def down(to: Lowering, node: Node, op: AdapterDown) -> None:
    """Several workgroups share the columns of a row for each matrix. Further workgroups may quantise the same rows."""
    factors = together(op.factors, to.target)
    assert op.whole, "other adapters are lowered as products"
    assert factors is not None, "factors of one dispatch are in one binding"
    width, columns = op.xs[0].shape[1], op.scales.shape[1]
    fours = columns // 4
    shares = min(fours, max(MIN_SHARES, -(-fours // MAX_FOURS)))
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
    operands: dict[str, Operand] = {"a": factors.slice, "x": x, "low": op.columns.root}
    norm, own, gain = to.rms_norm(op.norm)
    groups, parts = (len(op.xs) * shares + (not op.unit)) * node.rows, ["adapters/alone"]
    if op.unit:
        constants["LOW_UNIT"] = op.unit
    if op.quantise:
        parts, others, bound = quantise_links(to, op.quantise, node.rows)
        constants, operands = constants | others, operands | bound
        groups += len(op.quantise.widths) * node.rows
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
    """Lanes of a workgroup; more for long rows."""
    wanted = width // 4 // FOURS_OF_A_LANE
    return min(to.tuning.lanes.row_lanes, max(MIN_LANES, 1 << (wanted - 1).bit_length()))
