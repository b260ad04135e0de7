"""What kernels link, and are specialised by, that multiply float16 on matrix units."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ...gpu.shader import Constant
from ...gpu.weights import Shard
from ...kernels.gemm_config import GemmConfig
from ...kernels.parts import (
    ADAPTER_COLUMNS,
    ADAPTER_OUTPUTS,
    HALVES,
    NO_COLUMNS,
    ROUNDING_IN_UNITS,
    SUMS_LEFT,
    SUMS_OF_PARTS,
    SUMS_OF_WORKGROUP,
    SUMS_ROUNDED,
    SUMS_TO_NORM,
    TILE_OF_SUBGROUP,
    TILE_OF_WORKGROUP,
    TO_NORM,
)
from ...kernels.registry import takes
from ..nodes import Gemm
from ..quantising import BY_SUBGROUPS, X_BY_FRAGMENTS, fragments_of
from ..values import CachedTensor, Operand, Value

Linked = tuple[list[str], dict[str, Constant]]


def on_matrix_units(op: Gemm, rows: int, config: GemmConfig, shard: Shard, widths: Sequence[int]) -> Linked:
    """What a product links, and is specialised by, whose matrices are of the format of a shard."""
    constants: dict[str, Constant] = {"W_EXPONENT": w_exponent(shard), "MOST_ASKED": _most_asked(op, config)}
    by_lines = config.kernel == "linear/line_gemm"
    parts = _decoded_fours(shard) if by_lines else [decoded_weights(shard)]
    parts += _further_columns(op, config)
    if by_lines:
        constants["STAGES"] = -(-max(widths) // (config.columns * config.joined_parts))
    if config.kernel in X_BY_FRAGMENTS:
        constants["FRAGMENTS"] = fragments_of(rows, config.fragment)
    if config.kernel in BY_SUBGROUPS:
        own_parts, own_constants = _rounded(op, rows)
        parts += own_parts
        constants |= own_constants
    return parts, constants


def joined_sums(config: GemmConfig, blocks: int) -> tuple[list[str], dict[str, Operand]]:
    """Where sums of so many blocks meet, each of a workgroup or of several that have parts of its columns."""
    if config.joined_parts == 1:
        return [SUMS_OF_WORKGROUP], {}
    found = Value((blocks * config.tb, config.r * config.joined_parts))
    count = blocks * config.fragments_of_w * config.fragments_of_x
    none_done = CachedTensor(("none done", count), partial(np.zeros, count, np.uint32))
    return [SUMS_OF_PARTS], {"found": found, "done": none_done}


def _most_asked(op: Gemm, config: GemmConfig) -> int:
    """How much of what sums on matrix units are added to a lane asks for at once: adapters and tiles want registers."""
    return 4 if config.kernel == "linear/line_gemm" and not op.adds_to_sums else 2


def w_exponent(shard: Shard) -> int:
    """The power of two by which weights are multiplied before they are rounded to float16, where that gains precision.

    Scales of packed formats are small: 2^4 keeps those from 4e-6 on at full precision, and weights up to 4,000. Floats
    stay as they are.
    """
    return 4 if shard.packed else 0


def decoded_weights(shard: Shard) -> str:
    """The part that makes float16 of what a format decodes."""
    kinds = {"formats/unsigned": "of_bytes", "formats/signed": "of_signed_bytes"}
    return "lib/matrix_units/" + next((kind for part, kind in kinds.items() if part in shard.parts), "of_floats")


def _decoded_fours(shard: Shard) -> list[str]:
    """The parts that make float16 of four weights of a run."""
    own = {part.rpartition("/")[2] for part in shard.parts}
    if own >= {"nibbles", "unsigned"} and "fifths" not in own:
        return ["lib/matrix_units/of_nibbles"]
    return [decoded_weights(shard), "lib/matrix_units/of_fours"]


def _further_columns(op: Gemm, config: GemmConfig) -> list[str]:
    """What a kernel links that can multiply B of adapters as columns of W."""
    if not takes(config.kernel, NO_COLUMNS):
        return []
    if not op.adapters or op.adds_to_sums:
        return [NO_COLUMNS]
    if config.kernel in BY_SUBGROUPS:
        return [ADAPTER_COLUMNS, ADAPTER_OUTPUTS, TILE_OF_SUBGROUP]
    return [ADAPTER_COLUMNS, ADAPTER_OUTPUTS, TILE_OF_WORKGROUP, HALVES]


def _rounded(op: Gemm, rows: int) -> Linked:
    """How rows of x as float16 are read, and whether the result is written as such, too."""
    x, y = op.quantised_x, op.quantises
    assert x is not None
    what = "row" if not x.unit else "all" if x.eps is None else "norm"
    parts = [f"lib/matrix_units/unit_of_{what}"]
    constants: dict[str, Constant] = {"X_UNIT": x.unit} if x.unit else {}
    constants |= {"X_EPS": float(x.eps)} if x.eps is not None else {}
    if y is None:
        return [*parts, SUMS_LEFT], constants
    parts += [SUMS_ROUNDED] if y.eps is None else [SUMS_TO_NORM, TO_NORM]
    parts += ROUNDING_IN_UNITS
    return parts, constants | {"UNIT": y.unit, "ROUNDED_ROWS": rows}
