"""Lowering of per-head products, by the kernels of experts: every row uses all heads, each with its own x."""

from ...gpu.shader import Constant
from ...kernels.expert_config import ExpertConfig
from ...kernels.gemm_config import MATRIX_STEP
from ...kernels.parts import ROUNDING_IN_UNITS
from ..graph import Node
from ..moe import Matrices, head_config, matrices_of
from ..nodes import HeadLinear
from ..quantising import UNIT
from ..run_shares import ONE
from ..values import Operand
from ..vocabulary import NUMBER, NUMBERS
from .attention import joining
from .context import Lowering, Runs
from .matrix_units import w_exponent
from .moe import decoded_parts
from .quantising import in_units


def head_linear(to: Lowering, node: Node, op: HeadLinear) -> None:
    heads, out, width = op.weight.shape
    stride, runs = op.x.shape[1] // heads, to.runs.pop(op.x, None)
    for matrices in matrices_of(op.weight, to.target):
        config = head_config(matrices, node.rows, to.target)
        operands: dict[str, Operand] = {"x": op.x}
        constants: dict[str, Constant] = {
            **matrices.constants, **NUMBERS, **config.constants, "E": heads, "USED": heads, "INPUT_USES": 1,
            "INPUT_STRIDE": stride, "THEN": NUMBER["none"], "SHARES": -(-out // config.block),
        }  # fmt: skip
        parts = [
            *matrices.format_parts(floats=config.norms),
            *config.parts,
            "moe/choices/heads",
            "moe/tiles",
            "moe/write",
            "moe/result/plain",
        ]
        parts += ["moe/bias/none", "moe/sums/plain", "moe/input/plain", "lib/activation"]
        if config.fragment:
            own_parts, own_constants, own_operands = _on_matrix_units(to, node, op, matrices)
            parts += own_parts
            constants |= own_constants
            operands |= own_operands
        else:
            parts += _reading(matrices, config, stride, runs)
        if runs is not None:
            operands = {"x": runs.found, "places": to.places(runs.cache)}
            constants |= {**runs.constants, "INPUT_STRIDE": 1}
        shared = config.workgroup_bytes + 4 * width * config.norms  # at most a whole x is staged
        if runs is not None:
            shared += 24 * config.wg + 4 * width
        if config.norms:
            staging, staged = matrices.staging(config, 1)
            parts += ["linear/prologue/no_norm", *staging]
            constants |= staged
        to.emit(
            node,
            op.weight.name,
            (config.kernel, *parts),
            constants,
            {**operands, "y": op.y, "w": matrices.slice, "shard": matrices.table},
            groups=heads * -(-node.rows // config.tb) * -(-out // config.block),
            fixed_bytes=matrices.slice.nbytes,
            row_flops=2 * heads * out * width,
            shared_bytes=shared,
        )


def _reading(matrices: Matrices, config: ExpertConfig, stride: int, runs: Runs | None) -> tuple[str, ...]:
    """The parts that read rows of x, or reduce the runs of attention."""
    if runs is not None:
        return "moe/rows/joined_runs", *joining(ONE), "attention/reach/window"  # for one row
    return _rows(matrices, stride), *matrices.reading(config)[1:]


def _rows(matrices: Matrices, stride: int) -> str:
    """The part that reads rows of x with a stride."""
    return "lib/rows/scalar" if stride % 4 else matrices.rows


def _on_matrix_units(
    to: Lowering, node: Node, op: HeadLinear, matrices: Matrices
) -> tuple[list[str], dict[str, Constant], dict[str, Operand]]:
    """The parts, constants and operands of tiles, which round x, and if requested also write a rounded y."""
    stride = op.x.shape[1] // matrices.experts
    kept = "rounded" if op.quantises else "none"
    parts = [*decoded_parts(matrices.shards[0]), f"moe/kept/{kept}", *ROUNDING_IN_UNITS]
    parts += ["moe/x/floats", _rows(matrices, stride), "moe/unit/all"]
    constants: dict[str, Constant] = {
        "W_EXPONENT": w_exponent(matrices.shards[0]), "X_UNIT": UNIT, "UNIT": UNIT,
        "ROUNDED_ROWS": node.rows, "FRAGMENTS": 0, "SIDE_BY_SIDE": matrices.experts,
        "PADDED": int(matrices.width % MATRIX_STEP > 0),
    }  # fmt: skip
    operands: dict[str, Operand] = {}
    if op.quantises:
        own, operands = in_units(to, op.quantises, node.rows)
        constants |= own
    return parts, constants, operands
