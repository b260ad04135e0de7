"""Adapts kernels for few rows to matrices, and plans the staging of x in workgroup memory."""

import math
from dataclasses import dataclass, replace

from ..gpu.shader import Constant
from .gemm_config import BYTES, UNLIMITED, Fitted, GemmConfig, Matrices

MIN_LANES = 8  # minimum number of lanes per row of W; with fewer, neighbouring loads are too far apart
CHUNK_BYTES = {"f32": 144, "int16": 80, "int8": 48}  # with padding; quantised chunks include a scale and sums
CHUNK_PARTS = {"f32": ("linear/staging/floats",)}
INTEGER_PARTS = "linear/staging/integers", "linear/staging/integer_products", "lib/quantise", "lib/dot16"


@dataclass(frozen=True)
class Staged:
    """Whole rows of x in workgroup memory."""

    chunks: int  # chunks of 32 columns, rounded up to what the lanes of a row load at a time
    form: str  # f32, int16, int8

    @classmethod
    def of(cls, config: GemmConfig, matrices: Matrices) -> "Staged":
        """The staging for a fitted config."""
        loads = -(-max(matrices.widths) // (32 * config.lanes_per_row))
        return cls(loads * config.lanes_per_row, config.activations if matrices.shards[0].packed else "f32")

    @property
    def parts(self) -> tuple[str, ...]:
        """The shader parts that stage rows."""
        return CHUNK_PARTS.get(self.form, INTEGER_PARTS)

    @property
    def constants(self) -> dict[str, Constant]:
        """Constants of the parts."""
        own: dict[str, Constant] = {"BYTES": BYTES[self.form]} if self.form in BYTES else {}
        return {"STAGED": self.chunks} | own

    @property
    def nbytes(self) -> int:
        """Bytes of workgroup memory."""
        return CHUNK_BYTES[self.form] * self.chunks


@dataclass(frozen=True)
class Pieces:
    """A piece of some rows of x at a time in workgroup memory."""

    chunks: int  # chunks of 32 columns of a piece
    pieced: bool  # whether rows have several pieces
    parts: tuple[str, ...] = ()  # empty: the config links the parts
    nbytes: int = 0  # 0: the config counts the bytes

    @property
    def constants(self) -> dict[str, Constant]:
        """Constants of the kernel."""
        return {"STAGED": self.chunks, "PIECED": int(self.pieced)}


def fit_rows(config: GemmConfig, matrices: Matrices) -> Fitted:
    """Adapts a config of gemv_int to some matrices; it becomes gemv_single_pass if one pass is enough.

    If workgroup memory is too small for a row, it becomes gemv.
    """
    fitted = _even_rows(config, matrices)
    single = _takes_single_pass(fitted, matrices)
    fitted = _single_pass(fitted, matrices.widths[0]) if single else fitted.multi_pass
    staged = Staged.of(fitted, matrices)
    if fitted.workgroup_bytes + staged.nbytes <= matrices.memory:
        return fitted, staged
    return replace(config, kernel="linear/gemv", max_workgroups=UNLIMITED, prefetch_depth=1), None


def _takes_single_pass(config: GemmConfig, matrices: Matrices) -> bool:
    """True if each workgroup of gemv_int has a single block of rows, and gemv_single_pass supports the matrices."""
    shards, widths = matrices.shards, matrices.widths
    one_width = len(set(widths)) == 1 and widths[0] % 32 == 0
    packed = all(shard.packed and shard.run == 32 for shard in shards)
    blocks = sum(-(-shard.rows // config.block) for shard in shards)
    one_pass = config.prefetch_depth > 1 and not matrices.pairs and blocks <= config.max_workgroups
    return one_pass and one_width and packed


def _single_pass(config: GemmConfig, width: int) -> GemmConfig:
    """Converts the config to gemv_single_pass, with a prefetch of at most as many chunks as a lane has."""
    chunks = -(-width // (32 * config.lanes_per_row))
    return replace(config, kernel="linear/gemv_single_pass", prefetch_depth=min(config.prefetch_depth, chunks))


def fit_pieces(config: GemmConfig, matrices: Matrices) -> Fitted:
    """Adapts a config of skinny_gemm to some matrices, and divides rows of x into equal pieces."""
    fitted = _even_rows(config, matrices)
    own = -(-max(matrices.widths) // (32 * fitted.lanes_per_row))  # chunks of a row per lane
    pieces = -(-own * fitted.lanes_per_row // fitted.staged) if fitted.staged else 1
    own = -(-own // pieces)
    depth = max(count for count in range(1, fitted.prefetch_depth + 1) if own % count == 0)
    chunks = own * fitted.lanes_per_row
    if not fitted.staged:
        return replace(fitted, prefetch_depth=depth), Pieces(chunks, False)
    lanes = fitted.wg if pieces > 1 or fitted.copies else _even_lanes(fitted, 8 * chunks)
    most = fitted.max_workgroups * (fitted.wg // lanes)  # a device runs more workgroups if they are smaller
    fitted = replace(fitted, wg=lanes, max_workgroups=most, prefetch_depth=depth, staged=chunks)
    return fitted, Pieces(chunks, pieces > 1)


def _even_lanes(config: GemmConfig, count: int) -> int:
    """The largest workgroup size, up to that of a config, whose lanes stage equal numbers of vec4s of a row."""
    every = range(config.subgroup_width, config.wg + 1, config.subgroup_width)
    return max((lanes for lanes in every if count % lanes == 0), default=config.wg)


def _even_rows(config: GemmConfig, matrices: Matrices) -> GemmConfig:
    """The config with a number of lanes per row of W that divides its chunks, so that all lanes have the same work.

    If that number is less than a fourth of the configured one, it keeps the latter, and some lanes idle.
    """
    lanes = math.gcd(config.lanes_per_row, *(-(-width // 32) for width in matrices.widths))
    fits = lanes >= MIN_LANES and 4 * lanes >= config.lanes_per_row
    return replace(config, lanes_per_row=lanes if fits else config.lanes_per_row)
