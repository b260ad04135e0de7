"""Products with a matrix for each head, by the kernels of experts: a row takes them all, each for an x of its own."""

from ...gpu.shader import Constant
from ...kernels.expert_config import ExpertConfig
from ..graph import Node
from ..moe import Matrices, expert_config, matrices_of
from ..nodes import HeadLinear, Quantise
from ..quantising import rounded_rows
from ..values import Operand
from ..vocabulary import NUMBER, NUMBERS
from .attention import JOINING
from .context import Lowering, Runs
from .matrix_units import w_exponent
from .moe import decoded_parts
from .quantising import round_rows


def head_linear(to: Lowering, node: Node, op: HeadLinear) -> None:
    heads, out, width = op.weight.shape
    stride, runs = op.x.shape[1] // heads, to.runs.pop(op.x, None)
    for matrices in matrices_of(op.weight, to.target):
        config = expert_config(matrices, node.rows * heads, to.target, heads=True)
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
            found = rounded_rows({0: width}, node.rows * heads)
            round_rows(to, node, Quantise(op.x, ((0, width),), found), node.rows * heads, gap=stride - width)
            operands = {"x": found.value}
            parts += [*decoded_parts(matrices.shards[0]), "moe/unit/row", "moe/kept/none"]
            constants |= {"W_EXPONENT": w_exponent(matrices.shards[0]), "X_ROWS": node.rows * heads}
        else:
            parts += _reading(matrices, config, stride, runs)
        if runs is not None:
            operands = {"x": runs.found, "places": to.places(runs.cache)}
            constants |= {**runs.constants, "INPUT_STRIDE": 1}
        shared = config.workgroup_bytes + 4 * width * config.norms  # a whole x at most is staged
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
    """What reads rows of x, or joins the runs of them."""
    if runs is not None:
        return "moe/rows/joined_runs", *JOINING, "attention/reach/window"
    if stride % 4:
        return "lib/rows/scalar", *matrices.reading(config)[1:]
    return matrices.reading(config)
