"""What ops and dispatches read and write: tensors that have no memory yet, and constants that dispatches bind."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gpu.plan import Slice
from ..gpu.shader import Constant

ALIGN = 256  # what any device asks of the offset of a binding


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a step. It is given memory when the plan is built. [rows, ...]

    A part of a stack has a `base` and lies `offset` bytes into it: kernels may bind the part or the whole.
    """

    shape: tuple[int, ...]
    dtype: npt.DTypeLike = np.float32
    name: str = ""  # of an input
    base: "Value | None" = None
    offset: int = 0
    size: int = 0  # in bytes, where padding makes it more than the shape says

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, in whole vec4s."""
        return self.size or max(16, -(-self.shape[0] * self.row_bytes // 16) * 16)

    @property
    def root(self) -> "Value":
        """What memory is given to."""
        return self.base or self

    @property
    def part_bytes(self) -> int:
        """Bytes between parts of its shape in a stack."""
        return -(-self.shape[0] * self.row_bytes // ALIGN) * ALIGN


def stack(rows: int, widths: Sequence[int]) -> tuple[Value, tuple[Value, ...]]:
    """One value of float32 that holds several, [rows, width] each, and these parts; each starts where a binding may."""
    offsets, end = [], 0
    for width in widths:
        offsets.append(end)
        end += -(-rows * width * 4 // ALIGN) * ALIGN
    whole = Value((rows, sum(widths)), size=end)
    parts = zip(widths, offsets, strict=True)
    return whole, tuple(Value((rows, width), base=whole, offset=offset) for width, offset in parts)


@dataclass(frozen=True)
class Quantised:
    """Rows of one or several x as integers with a scale for each 32 columns."""

    value: Value
    starts: Mapping[int, int]  # by where each x starts in its value, in floats, where its integers do, in vec4s
    size: int  # of an integer, in bytes; 0 for float16 with a power of two for each row
    by_rows: bool  # in the order of rows, or of columns
    unit: float = 0.0  # of float16: what all rows are multiples of; 0 where each has a power of two
    eps: float | None = None  # of the norm that such rows are still to go through, with sums of squares behind them

    @property
    def constants(self) -> dict[str, Constant]:
        """What kernels are specialised by that read or write them."""
        return {"BYTES": self.size, "QUANTISED_ROWS": self.value.shape[0], "BY_ROWS": int(self.by_rows)}


@dataclass(frozen=True)
class RowStatistics:
    """Statistics of a row by parts: of so many columns each, their mean and squared differences from it."""

    value: Value  # [parts, 2]
    parts: int
    columns: int  # of a part


@dataclass(frozen=True)
class UniformTable:
    """Constants that a dispatch reads as a uniform: what differs between matrices that share a pipeline."""

    words: tuple[int, ...]


@dataclass(frozen=True)
class JoinedVectors:
    """Float32 parameters one after the other, zeros for None: the biases of several products."""

    names: tuple[str | None, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class CachedTensor:
    """An array that is computed once for all plans of a model. Its key says what it follows from."""

    key: Hashable
    make: Callable[[], npt.NDArray[Any]] = field(compare=False)


Operand = Value | Slice | UniformTable | JoinedVectors | CachedTensor
Unplaced = Value | UniformTable | JoinedVectors | CachedTensor  # what has memory only when the plan is built


def place(value: Value, places: Mapping[Unplaced, Slice]) -> Slice:
    """Where a value lies, which may be a part of where its stack lies."""
    whole = places[value.root]
    return whole if value.base is None else replace(whole, offset=whole.offset + value.offset, nbytes=value.nbytes)
