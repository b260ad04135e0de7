"""How kernels of few rows keep rows of x in workgroup memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..gpu.shader import Constant
from ..gpu.weights import Shard
from ..kernels.gemm_config import BYTES, MANY, GemmConfig

LEAST_SIDE = 8  # lanes of a row; with fewer, what they load lies too far apart


@dataclass(frozen=True)
class Staged:
    """Whole rows, for matrices of one format and some widths."""

    chunks: int  # of 32 columns, up to what the lanes of a row load at a time
    form: str  # f32, int16, int8

    @classmethod
    def of(cls, shape: GemmConfig, packed: bool, widths: Sequence[int]) -> "Staged":
        """As a fitted shape asks for it."""
        turns = -(-max(widths) // (32 * shape.lanes_per_row))
        return cls(turns * shape.lanes_per_row, shape.activations if packed else "f32")

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
    parts: tuple[str, ...] = ()  # none beside those of the shape
    nbytes: int = 0  # nor any memory

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        return {"STAGED": self.chunks, "PIECED": int(self.pieced)}


def staging(
    shape: GemmConfig, shards: Sequence[Shard], widths: Sequence[int], out: object, most: int
) -> tuple[GemmConfig, "Staged | Pieces | None"]:
    """A shape as such products need it, and how it stages whole rows of x; another where memory is too little for it.

    Gate and up take turns, so that pairs want an even number of rows.
    """
    if out == "gated_pairs":
        shape = replace(shape, r=shape.r + shape.r % 2)
    if shape.kernel == "linear/skinny_gemm":
        return _in_pieces(shape, widths)
    if shape.kernel != "linear/gemv_int":
        return shape, None
    row = _fitted(shape, widths)
    row = _once(row, widths[0]) if _has_once(row, shards, widths, out) else row.multi_pass
    staged = Staged.of(row, shards[0].packed, widths)
    if row.workgroup_bytes + staged.nbytes <= most:
        return row, staged
    return replace(shape, kernel="linear/gemv", max_workgroups=MANY, prefetch_depth=1), None


def _has_once(shape: GemmConfig, shards: Sequence[Shard], widths: Sequence[int], out: object) -> bool:
    """Whether a shape of linear_row has one block of rows for a workgroup, of what linear_once can multiply."""
    alike = len(set(widths)) == 1 and widths[0] % 32 == 0 and all(shard.packed and shard.run == 32 for shard in shards)
    blocks = sum(-(-shard.rows // shape.block) for shard in shards)
    return shape.prefetch_depth > 1 and out == "rows" and alike and blocks <= shape.max_workgroups


def _once(shape: GemmConfig, width: int) -> GemmConfig:
    """The same of linear_once, with no more chunks ahead than a lane has."""
    return replace(
        shape,
        kernel="linear/gemv_single_pass",
        prefetch_depth=min(shape.prefetch_depth, -(-width // (32 * shape.lanes_per_row))),
    )


def _in_pieces(shape: GemmConfig, widths: Sequence[int]) -> tuple[GemmConfig, Pieces]:
    """A shape of linear_few for matrices of some widths, and how many columns it has at a time: pieces of one size."""
    few = _fitted(shape, widths)
    turns = -(-max(widths) // (32 * few.lanes_per_row))  # chunks of a row for a lane
    pieces = -(-turns * few.lanes_per_row // few.staged) if few.staged else 1
    turns = -(-turns // pieces)
    prefetch_depth = max(count for count in range(1, few.prefetch_depth + 1) if turns % count == 0)
    if not few.staged:
        return replace(few, prefetch_depth=prefetch_depth), Pieces(turns * few.lanes_per_row, False)
    chunks = turns * few.lanes_per_row
    lanes = few.wg if pieces > 1 or few.copies else _alike(few, 8 * chunks)
    most = few.max_workgroups * (few.wg // lanes)  # a device holds more of fewer lanes
    return replace(few, wg=lanes, max_workgroups=most, prefetch_depth=prefetch_depth, staged=chunks), Pieces(
        chunks, pieces > 1
    )


def _alike(shape: GemmConfig, count: int) -> int:
    """Lanes of a workgroup, at most those of a shape, of which each stages as many of the vec4s of a row."""
    every = range(shape.subgroup_width, shape.wg + 1, shape.subgroup_width)
    return max((lanes for lanes in every if count % lanes == 0), default=shape.wg)


def _fitted(shape: GemmConfig, widths: Sequence[int]) -> GemmConfig:
    """A shape of linear_row for matrices of some widths: lanes that have all the same to do, where there are such."""
    lanes_per_row = math.gcd(shape.lanes_per_row, *(-(-width // 32) for width in widths))
    return replace(shape, lanes_per_row=lanes_per_row if lanes_per_row >= LEAST_SIDE else shape.lanes_per_row)
