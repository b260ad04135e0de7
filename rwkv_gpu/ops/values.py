"""Operands of ops and dispatches: tensors without memory yet, and constants that dispatches bind."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gpu.plan import Slice
from ..gpu.shader import Constant

ALIGN = 256  # binding offset alignment that suits any device


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a step. It gets memory when the plan is built. [rows, ...]

    A part of a stack has a `base` and starts `offset` bytes into it. Kernels may bind the part or the whole stack.
    """

    shape: tuple[int, ...]
    dtype: npt.DTypeLike = np.float32
    name: str = ""  # for inputs
    base: "Value | None" = None
    offset: int = 0
    size: int = 0  # bytes including padding; 0: as the shape implies

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
        """The value that memory is allocated for: its stack, or itself."""
        return self.base or self

    @property
    def part_bytes(self) -> int:
        """Bytes from one part to the next in a stack of values of its shape."""
        return -(-self.shape[0] * self.row_bytes // ALIGN) * ALIGN


def stack(rows: int, widths: Sequence[int]) -> tuple[Value, tuple[Value, ...]]:
    """A float32 value that holds several parts [rows, width], and the parts, at aligned offsets."""
    offsets, end = [], 0
    for width in widths:
        offsets.append(end)
        end += -(-rows * width * 4 // ALIGN) * ALIGN
    whole = Value((rows, sum(widths)), size=end)
    parts = zip(widths, offsets, strict=True)
    return whole, tuple(Value((rows, width), base=whole, offset=offset) for width, offset in parts)


@dataclass(frozen=True)
class Quantised:
    """Quantised rows of one or several x: integers with a scale per 32 columns, or float16."""

    value: Value
    starts: Mapping[int, int]  # by start of x in the value, in floats: start of the quantised x, in vec4s
    size: int  # bytes of an integer; 0: float16
    by_rows: bool  # True: row-major order; False: column-major
    unit: float = 0.0  # for float16: the unit that all rows are multiples of; 0: each row has its own power of two
    eps: float | None = None  # eps of a norm still to be applied; sums of squares follow the rows then

    @property
    def constants(self) -> dict[str, Constant]:
        """Constants of kernels that read or write the rows."""
        return {"BYTES": self.size, "QUANTISED_ROWS": self.value.shape[0], "BY_ROWS": int(self.by_rows)}


@dataclass(frozen=True)
class RowStatistics:
    """Statistics of a row in parts: the mean and the sum of squared differences of each part's columns."""

    value: Value  # [parts, 2]
    parts: int
    columns: int  # columns per part


@dataclass(frozen=True)
class UniformTable:
    """Constants that a dispatch reads as a uniform, as they differ between uses of one pipeline."""

    words: tuple[int, ...]


@dataclass(frozen=True)
class JoinedVectors:
    """Float32 parameters joined into one binding, with zeros for None; for example the biases of several products."""

    names: tuple[str | None, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class CachedTensor:
    """An array that is computed once for all plans of a model, identified by its key."""

    key: Hashable
    make: Callable[[], npt.NDArray[Any]] = field(compare=False)


Operand = Value | Slice | UniformTable | JoinedVectors | CachedTensor
Unplaced = Value | UniformTable | JoinedVectors | CachedTensor  # operands that get memory when the plan is built


def place(value: Value, places: Mapping[Unplaced, Slice]) -> Slice:
    """The memory of a value; for part of a stack, a range of the stack's memory."""
    whole = places[value.root]
    return whole if value.base is None else replace(whole, offset=whole.offset + value.offset, nbytes=value.nbytes)
