"""How kernels of few rows keep rows of x in workgroup memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..gpu.shader import Constant
from ..gpu.tuning import BYTES, MANY, LinearShape
from ..gpu.weights import Shard

LEAST_SIDE = 8  # lanes of a row; with fewer, what they load lies too far apart


@dataclass(frozen=True)
class Staged:
    """Whole rows, for matrices of one format and some widths."""

    chunks: int  # of 32 columns, up to what the lanes of a row load at a time
    form: str  # f32, int16, int8

    @classmethod
    def of(cls, shape: LinearShape, packed: bool, widths: Sequence[int]) -> "Staged":
        """As a fitted shape asks for it."""
        turns = -(-max(widths) // (32 * shape.side))
        return cls(turns * shape.side, shape.x if packed else "f32")

    @property
    def parts(self) -> tuple[str, ...]:
        """The shader parts that do it."""
        return (
            ("staged/floats",)
            if self.form == "f32"
            else ("staged/integers", "staged/bytes", "staged/rounded", "staged/dot16")
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
    shape: LinearShape, shards: Sequence[Shard], widths: Sequence[int], out: object, most: int
) -> tuple[LinearShape, "Staged | Pieces | None"]:
    """A shape as such products need it, and how it stages whole rows of x; another where memory is too little for it.

    Gate and up take turns, so that pairs want an even number of rows.
    """
    if out == "pairs":
        shape = replace(shape, r=shape.r + shape.r % 2)
    if shape.kernel == "linear_few":
        return _in_pieces(shape, widths)
    if shape.kernel != "linear_row":
        return shape, None
    row = _fitted(shape, widths)
    row = _once(row, widths[0]) if _has_once(row, shards, widths, out) else row.by_row
    staged = Staged.of(row, shards[0].packed, widths)
    if row.workgroup_bytes + staged.nbytes <= most:
        return row, staged
    return replace(shape, kernel="linear_vec", most=MANY, ahead=1), None


def _has_once(shape: LinearShape, shards: Sequence[Shard], widths: Sequence[int], out: object) -> bool:
    """Whether a shape of linear_row has one block of rows for a workgroup, of what linear_once can multiply."""
    alike = len(set(widths)) == 1 and widths[0] % 32 == 0 and all(shard.packed and shard.run == 32 for shard in shards)
    blocks = sum(-(-shard.rows // shape.block) for shard in shards)
    return shape.ahead > 1 and out == "rows" and alike and blocks <= shape.most


def _once(shape: LinearShape, width: int) -> LinearShape:
    """The same of linear_once, with no more chunks ahead than a lane has."""
    return replace(shape, kernel="linear_once", ahead=min(shape.ahead, -(-width // (32 * shape.side))))


def _in_pieces(shape: LinearShape, widths: Sequence[int]) -> tuple[LinearShape, Pieces]:
    """A shape of linear_few for matrices of some widths, and how many columns it has at a time: pieces of one size."""
    few = _fitted(shape, widths)
    turns = -(-max(widths) // (32 * few.side))  # chunks of a row for a lane
    pieces = -(-turns * few.side // few.staged) if few.staged else 1
    turns = -(-turns // pieces)
    ahead = max(count for count in range(1, few.ahead + 1) if turns % count == 0)
    if not few.staged:
        return replace(few, ahead=ahead), Pieces(turns * few.side, False)
    chunks = turns * few.side
    lanes = few.wg if pieces > 1 or few.copies else _alike(few, 8 * chunks)
    most = few.most * (few.wg // lanes)  # a device holds more of fewer lanes
    return replace(few, wg=lanes, most=most, ahead=ahead, staged=chunks), Pieces(chunks, pieces > 1)


def _alike(shape: LinearShape, count: int) -> int:
    """Lanes of a workgroup, at most those of a shape, of which each stages as many of the vec4s of a row."""
    every = range(shape.reach, shape.wg + 1, shape.reach)
    return max((lanes for lanes in every if count % lanes == 0), default=shape.wg)


def _fitted(shape: LinearShape, widths: Sequence[int]) -> LinearShape:
    """A shape of linear_row for matrices of some widths: lanes that have all the same to do, where there are such."""
    side = math.gcd(shape.side, *(-(-width // 32) for width in widths))
    return replace(shape, side=side if side >= LEAST_SIDE else shape.side)
