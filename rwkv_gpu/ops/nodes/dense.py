"""Ops that process each row independently: embedding, norms, elementwise maps, residual streams, sampling, probes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...gpu.shader import Constant
from ..graph import Op
from ..values import Operand, Quantised, Value
from ..vocabulary import (
    Blocks,
    Cache,
    Choosing,
    Columns,
    LayerNorm,
    NGrams,
    Pairing,
    Rms,
    SlotRows,
    StreamGates,
    Weight,
)


@dataclass(frozen=True)
class Embed(Op):
    """y[t] = norm(scale · W[ids[t]]), or the row of W for the position of t"""

    ids: Value | None
    weight: Weight
    y: Value
    norm: LayerNorm | None = None
    scale: float = 1.0
    positions: Cache | None = None  # if there are no ids: the cache whose pages define the position of each row
    fuses: ClassVar = {"norm": "layer_norm"}


@dataclass(frozen=True)
class Norm(Op):
    """y = after · (scale · norm(x) + add), by row"""

    x: Value
    how: Rms | LayerNorm
    y: Value
    add: Value | None = None
    scale: float = 1.0
    after: float = 1.0
    quantises: Quantised | None = None  # y as integers or float16, written in addition
    next_norm: Rms | None = None  # a second norm, applied to what it quantises

    @property
    def plain(self) -> bool:
        """True if it is a norm with weight and nothing else, so that a product can apply it while reading x."""
        return self.add is None and self.scale == self.after == 1.0 and self.how.weight is not None

    @property
    def label(self) -> str:
        return self.how.weight.name if self.how.weight else ""


@dataclass(frozen=True)
class Map(Op):
    """y = f(x, numbers) or f(x, z, numbers), by element"""

    f: str  # a row of ELEMENTWISE
    inputs: tuple[Value, ...]  # x, and z if f reads one that is not a parameter
    y: Value
    numbers: tuple[float, ...] = ()
    first: int = 0  # first column of z that is read
    vector: Weight | None = None  # [D], a parameter as z, the same for every row
    named_by = "f"


@dataclass(frozen=True)
class ScaleRows(Op):
    """y[t] = x[t] · by[t] + add[t]"""

    x: Value
    by: Value  # [T, H], one factor for each of H parts of a row
    y: Value
    add: Value | None = None


@dataclass(frozen=True)
class RowMatrix(Op):
    """y[t, d] = sum over i of x[t, i] · m[t, i · D + d]"""

    x: Value
    m: Value
    y: Value


@dataclass(frozen=True)
class MeanParts(Op):
    """y[t, d] = mean over i of x[t, i · D + d]"""

    x: Value
    parts: int
    y: Value


@dataclass(frozen=True)
class TokenNumbers(Op):
    """y[t] = 1 + the token of t, four times"""

    ids: Value
    y: Value


@dataclass(frozen=True)
class NGramRows(Op):
    """Rows of a table, chosen by the last tokens"""

    numbers: Value
    how: NGrams
    y: Value  # [T, rows]


@dataclass(frozen=True)
class ByRow(Op):
    """y = softmax(x), argmax(x) or excess(x), by row"""

    f: str  # softmax, argmax, excess
    x: Value
    y: Value
    number: float = 0.0  # the number of deviations in `excess`
    named_by = "f"


@dataclass(frozen=True)
class Copy(Op):
    """y = x, where y is part of a stack that a kernel reads as a whole"""

    x: Value
    y: Value


@dataclass(frozen=True)
class ResizeHeads(Op):
    """y[t, h] = x[t, h], truncated or padded with zeros"""

    x: Value
    heads: int
    y: Value


@dataclass(frozen=True)
class Scatter(Op):
    """y[t, ids[i]] = x[t, i], and MIN_LOGIT in all other columns"""

    x: Value
    columns: Columns
    y: Value
    makes: ClassVar = ("y",)


@dataclass(frozen=True)
class Turn(Op):
    """y[t, h]: the first pairs of a head, rotated by the angles of row t"""

    x: Value
    angles: Value  # [T, parts · R]: cosines, then sines, of each part
    heads: int
    pairing: Pairing
    parts: int  # head h turns by part h mod parts
    y: Value


@dataclass(frozen=True)
class Pick(Op):
    """y = the rows of x whose logits are needed"""

    x: Value
    y: Value


@dataclass(frozen=True)
class PickBlocks(Op):
    """y = blocks of rows of x, joined or their mean"""

    x: Value
    count: int  # rows of a block
    how: Blocks
    y: Value
    named_by = "how"


@dataclass(frozen=True)
class Kernel(Op):
    """A shader given by name, for probes of a device; models do not use it"""

    shader: tuple[str, ...]  # the kernel and its parts
    constants: Mapping[str, Constant]
    operands: Mapping[str, Operand]  # values among these count as written
    groups: int

    @property
    def writes(self) -> tuple[Value, ...]:
        return tuple(operand for operand in self.operands.values() if isinstance(operand, Value))


@dataclass(frozen=True)
class PredictStreams(Op):
    """y_b[t] = x_b[t] + sum over a of coefs[t, S · b + a] · x_a[t]"""

    x: Value  # a stack of S
    coefs: Value
    ys: tuple[Value, ...]


@dataclass(frozen=True)
class CorrectStreams(Op):
    """y_s[t] = x_s[t] + (1 + coefs[t, s]) · (found[t] - x_0[t]) + add[t]; y_0 without add"""

    x: Value  # a stack that begins with one value for each result
    found: Value
    coefs: Value
    ys: tuple[Value, ...]
    add: Value | None = None


@dataclass(frozen=True)
class MakeStreamGates(Op):
    """y_p[t, s] = m_p · sigmoid(scales[p] · z[t, p · S + s] + bias[p · S + s]) + eps"""

    z: Value
    how: StreamGates
    ys: tuple[Value, ...]  # a stack


@dataclass(frozen=True)
class MakeStreamMatrix(Op):
    """The matrix between streams, whose rows and columns sum to 1"""

    z: Value
    how: StreamGates
    y: Value  # [T, S · S]


@dataclass(frozen=True)
class AddToStreams(Op):
    """y[t, s · D + d] = x[t, s · D + d] + gates[t, s] · found[t, d]"""

    x: Value
    found: Value
    gates: Value
    y: Value
    matrix: Value | None = None  # [T, S · S], which mixes x first


@dataclass(frozen=True)
class MatchLength(Op):
    """y[t] = x[t] · |as_long[t]| / |x[t]|"""

    x: Value
    as_long: Value
    y: Value


@dataclass(frozen=True)
class Sample(Op):
    """The token of each row, chosen from its logits"""

    logits: Value
    how: Choosing
    chosen: Value
    makes: ClassVar = ("chosen",)
    named_by = "how"


@dataclass(frozen=True)
class Accept(Op):
    """Counts the right drafts of each sequence"""

    ids: Value
    chosen: Value


@dataclass(frozen=True)
class Correct(Op):
    """y = an input of the step, corrected where only the device knows the length of a sequence"""

    given: Value
    y: Value


@dataclass(frozen=True)
class Concat(Op):
    """z[t] = [x[t] | y[t]]"""

    x: Value
    y: Value
    z: Value
    makes: ClassVar = ("z",)


@dataclass(frozen=True)
class RowBefore(Op):
    """y[t] = the row `back` positions before that of t in `rows`, for one row of each sequence"""

    rows: SlotRows
    y: Value
    back: int = 1
    state_inputs = ("rows",)


@dataclass(frozen=True)
class KeepRows(Op):
    """`rows` has x of the last rows of each segment"""

    x: Value
    rows: SlotRows
    state_outputs = ("rows",)


@dataclass(frozen=True)
class ShiftRows(Op):
    """y[t] = x[t - 1], or the row before the segment in `rows`, which then has x of its last rows"""

    x: Value
    rows: SlotRows
    y: Value
    state_inputs = state_outputs = ("rows",)
