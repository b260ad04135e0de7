"""How kernels of few rows keep rows of x in workgroup memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..gpu.shader import Constant
from ..gpu.weights import Shard
from ..kernels.gemm_config import BYTES, MANY, GemmConfig, spread_lines, spread_rows

PAIRS = "gated_pairs", "adapted_pairs"  # what becomes of sums of gate and up
LEAST_LANES = 8  # of a row of W; with fewer, what they load lies too far apart


@dataclass(frozen=True)
class Staged:
    """Whole rows, for matrices of one format and some widths."""

    chunks: int  # of 32 columns, up to what the lanes of a row load at a time
    form: str  # f32, int16, int8

    @classmethod
    def of(cls, config: GemmConfig, packed: bool, widths: Sequence[int]) -> "Staged":
        """As a fitted config asks for it."""
        loads = -(-max(widths) // (32 * config.lanes_per_row))
        return cls(loads * config.lanes_per_row, config.activations if packed else "f32")

    @property
    def parts(self) -> tuple[str, ...]:
        """The shader parts that do it."""
        return (
            ("linear/staging/floats",)
            if self.form == "f32"
            else ("linear/staging/integers", "linear/staging/integer_products", "lib/quantise", "lib/dot16")
        )

    @property
    def constants(self) -> dict[str, Constant]:
        """What the part is specialised by."""
        own: dict[str, Constant] = {"BYTES": BYTES[self.form]} if self.form in BYTES else {}
        return {"STAGED": self.chunks} | own

    @property
    def nbytes(self) -> int:
        """Of workgroup memory: chunks with gaps, where those that became integers keep a scale and sums."""
        chunk = {"f32": 144, "int16": 80, "int8": 48}
        return chunk[self.form] * self.chunks


@dataclass(frozen=True)
class Pieces:
    """So many columns of some rows at a time."""

    chunks: int  # of 32 columns
    pieced: bool  # whether rows have more
    parts: tuple[str, ...] = ()  # none beside those of the config
    nbytes: int = 0  # nor any memory

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        return {"STAGED": self.chunks, "PIECED": int(self.pieced)}


def staging(
    config: GemmConfig, shards: Sequence[Shard], widths: Sequence[int], result: str, memory: int
) -> tuple[GemmConfig, "Staged | Pieces | None"]:
    """A config as such products need it, and how it stages rows of x; another kernel where memory is too little.

    Rows of gate and up alternate, so gated pairs want an even number of rows.
    """
    if result in PAIRS:
        config = replace(config, r=config.r + config.r % 2)
    if config.kernel == "linear/skinny_gemm":
        return _in_pieces(config, widths)
    if config.kernel == "linear/subgroup_gemm":
        return spread_rows(config, [shard.rows for shard in shards], max(widths), memory), None
    if config.kernel == "linear/line_gemm":
        return spread_lines(config, [shard.rows for shard in shards], max(widths), shards[0].run, memory), None
    if config.kernel != "linear/gemv_int":
        return config, None
    fitted = _fitted(config, widths)
    single = _takes_single_pass(fitted, shards, widths, result)
    fitted = _single_pass(fitted, widths[0]) if single else fitted.multi_pass
    staged = Staged.of(fitted, shards[0].packed, widths)
    if fitted.workgroup_bytes + staged.nbytes <= memory:
        return fitted, staged
    return replace(config, kernel="linear/gemv", max_workgroups=MANY, prefetch_depth=1), None


def _takes_single_pass(config: GemmConfig, shards: Sequence[Shard], widths: Sequence[int], result: str) -> bool:
    """Whether each workgroup of gemv_int has one block of rows, of what gemv_single_pass can multiply."""
    one_width = len(set(widths)) == 1 and widths[0] % 32 == 0
    packed = all(shard.packed and shard.run == 32 for shard in shards)
    blocks = sum(-(-shard.rows // config.block) for shard in shards)
    return (
        config.prefetch_depth > 1 and result not in PAIRS and one_width and packed and blocks <= config.max_workgroups
    )


def _single_pass(config: GemmConfig, width: int) -> GemmConfig:
    """The same of gemv_single_pass, which prefetches no more chunks than a lane has."""
    chunks = -(-width // (32 * config.lanes_per_row))
    return replace(config, kernel="linear/gemv_single_pass", prefetch_depth=min(config.prefetch_depth, chunks))


def _in_pieces(config: GemmConfig, widths: Sequence[int]) -> tuple[GemmConfig, Pieces]:
    """A config of skinny_gemm for matrices of some widths, and how many columns it has at a time, in even pieces."""
    fitted = _fitted(config, widths)
    own = -(-max(widths) // (32 * fitted.lanes_per_row))  # chunks of a row for a lane
    pieces = -(-own * fitted.lanes_per_row // fitted.staged) if fitted.staged else 1
    own = -(-own // pieces)
    depth = max(count for count in range(1, fitted.prefetch_depth + 1) if own % count == 0)
    chunks = own * fitted.lanes_per_row
    if not fitted.staged:
        return replace(fitted, prefetch_depth=depth), Pieces(chunks, False)
    lanes = fitted.wg if pieces > 1 or fitted.copies else _even_lanes(fitted, 8 * chunks)
    most = fitted.max_workgroups * (fitted.wg // lanes)  # a device holds more of fewer lanes
    fitted = replace(fitted, wg=lanes, max_workgroups=most, prefetch_depth=depth, staged=chunks)
    return fitted, Pieces(chunks, pieces > 1)


def _even_lanes(config: GemmConfig, count: int) -> int:
    """The most lanes of a workgroup, up to those of a config, of which each stages as many of the vec4s of a row."""
    every = range(config.subgroup_width, config.wg + 1, config.subgroup_width)
    return max((lanes for lanes in every if count % lanes == 0), default=config.wg)


def _fitted(config: GemmConfig, widths: Sequence[int]) -> GemmConfig:
    """The config with as many lanes for a row of W as divide its chunks, so that all have the same work.

    With less than a fourth of those wanted, few workgroups would have all rows: then some lanes wait instead.
    """
    lanes = math.gcd(config.lanes_per_row, *(-(-width // 32) for width in widths))
    fits = lanes >= LEAST_LANES and 4 * lanes >= config.lanes_per_row
    return replace(config, lanes_per_row=lanes if fits else config.lanes_per_row)
