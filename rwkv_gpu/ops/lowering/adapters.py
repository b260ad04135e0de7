"""LoRA adapters beside products of few rows as dispatches."""

from collections.abc import Sequence

from ...gpu.shader import Constant, Struct
from ...kernels.parts import LOW_IN_UNIT, LOW_NORMED
from ..factors import FOUR, VEC4, together
from ..graph import Node
from ..nodes import AdapterDown, Gemm, Product
from ..values import JoinedVectors, Operand
from .context import Lowering
from .quantising import beside

MOST_FOURS = 8  # of columns, that a workgroup multiplies one after the other
LEAST_LANES, FOURS_OF_A_LANE = 512, 4  # of a workgroup; of 1,024 lanes a multiprocessor runs two at most
LOW_SCALE = 16.0  # of low as float16, by which B is multiplied: sums over A and x go far beyond x
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
            f"lib/lanes/{to.tuning.reduce}",
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
    return min(to.tuning.row_lanes, max(LEAST_LANES, 1 << (wanted - 1).bit_length()))


def up_operands(to: Lowering, op: Gemm) -> dict[str, Operand]:
    """What a product binds that adds what adapters give."""
    assert op.adapters is not None
    factors = together([one for one in op.adapters.factors if one], to.target)
    assert factors is not None, "only what lies together is fused"
    low = next(low for lows in op.adapters.lows for low in lows)
    bound: dict[str, Operand] = {"b": factors.slice, "low": low.root}
    return bound | {"bias": _bias(op.products)} if op.adds_to_sums else bound


def up_constants(to: Lowering, op: Gemm) -> dict[str, Constant]:
    """What it is specialised by."""
    assert op.adapters is not None
    wanted = [one for one in op.adapters.factors if one]
    factors = together(wanted, to.target)
    assert factors is not None
    read = FOUR if op.adds_to_sums else VEC4  # of B at a time
    starts, outputs, first = iter(factors.starts), [], 0
    for product, lows in zip(op.products, op.adapters.lows, strict=True):
        at = [low.offset // VEC4 for low in lows]
        own = (1, next(starts) // read, at[0], at[-1]) if at else (0, 0, 0, 0)
        outputs.append(Struct("AdapterOutput", (first, *own)))
        first += product.weight.shape[0]
    constants: dict[str, Constant] = {
        "COLUMN_FOURS": wanted[0].shape[1] // 4,
        "B_STRIDE": factors.stride // read,
        "ADAPTED": len(outputs),
        "OUTPUTS": tuple(outputs),
    }
    if op.adapters.columns is None:
        return constants | {"LOW_SCALE": LOW_SCALE, "ALTERNATE": 1 + op.pairs}
    return constants | {"COLUMNS_AT": op.adapters.columns.offset // VEC4}


def _bias(products: Sequence[Product]) -> JoinedVectors:
    """The biases of products, zeros where there is none."""
    names = tuple(one.bias.name if one.bias else None for one in products)
    return JoinedVectors(names, tuple(one.weight.shape[0] for one in products))
