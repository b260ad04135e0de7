"""LoRA adapters beside products of few rows as dispatches."""

from collections.abc import Sequence

from ...gpu.shader import Constant, Struct
from ..factors import FOURS, together
from ..graph import Node
from ..nodes import AdapterDown, Gemm, Product
from ..values import JoinedVectors, Operand
from .context import Lowering


def down(to: Lowering, node: Node, op: AdapterDown) -> None:
    """A workgroup for four columns of a row; those that a row does not have end at once."""
    factors = together(op.factors, to.target)
    assert op.whole, "the others are products"
    assert factors is not None, "only what lies together is one dispatch"
    width, columns = op.xs[0].shape[1], op.scales.shape[1]
    inputs = zip(factors.starts, op.xs, op.lows, strict=True)
    constants: dict[str, Constant] = {
        "WG": to.tuning.row_lanes,
        "ROWS": node.rows,
        "K": width,
        "COLUMN_FOURS": columns // 4,
        "A_STRIDE": factors.stride,
        "COLUMNS_AT": op.columns.offset // FOURS,
        "INPUTS": tuple(Struct("AdapterInput", (a, x.offset // FOURS, low.offset // FOURS)) for a, x, low in inputs),
    }
    x = op.xs[0].root
    operands: dict[str, Operand] = {"a": factors.slice, "x": x, "low": op.columns.root, "scales": op.scales}
    norm, own, gain = to.rms_norm(op.norm)
    to.emit(
        node,
        "+".join(one.name for one in op.factors),
        ("adapters/down", f"lib/lanes/{to.tuning.reduce}", norm),
        constants | own,
        operands | gain,
        groups=(len(op.xs) * columns // 4 + 1) * node.rows,
        row_flops=2 * width * columns * len(op.xs),
    )


def up_operands(to: Lowering, op: Gemm) -> dict[str, Operand]:
    """What a product binds that adds what adapters give."""
    assert op.adapters is not None
    factors = together([one for one in op.adapters.factors if one], to.target)
    assert factors is not None, "only what lies together is fused"
    return {"b": factors.slice, "low": op.adapters.columns.root, "bias": _bias(op.products)}


def up_constants(to: Lowering, op: Gemm) -> dict[str, Constant]:
    """What it is specialised by."""
    assert op.adapters is not None
    wanted = [one for one in op.adapters.factors if one]
    factors = together(wanted, to.target)
    assert factors is not None
    starts, outputs, first = iter(factors.starts), [], 0
    for product, low in zip(op.products, op.adapters.lows, strict=True):
        own = (0, 0, 0) if low is None else (1, next(starts), low.offset // FOURS)
        outputs.append(Struct("AdapterOutput", (first, *own)))
        first += product.weight.shape[0]
    return {
        "COLUMN_FOURS": wanted[0].shape[1] // 4,
        "B_STRIDE": factors.stride,
        "COLUMNS_AT": op.adapters.columns.offset // FOURS,
        "ADAPTED": len(outputs),
        "OUTPUTS": tuple(outputs),
    }


def _bias(products: Sequence[Product]) -> JoinedVectors:
    """The biases of products, zeros where there is none."""
    names = tuple(one.bias.name if one.bias else None for one in products)
    return JoinedVectors(names, tuple(one.weight.shape[0] for one in products))
