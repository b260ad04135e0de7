"""What a recorded op reads and writes: tensors that have no memory yet, and constants that dispatches bind."""

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
    """A tensor of the plan: known by shape while recording, given memory at the end. [rows, ...]

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
class Integers:
    """Several x of one value, rounded: by where each started there, in floats, where its integers do, in vec4s."""

    value: Value
    starts: Mapping[int, int]
    size: int  # of an integer, in bytes
    by_rows: bool  # or by columns

    @property
    def constants(self) -> dict[str, Constant]:
        """What is specialised by how they lie."""
        return {"BYTES": self.size, "QUANTISED_ROWS": self.value.shape[0], "BY_ROWS": int(self.by_rows)}


@dataclass(frozen=True)
class Words:
    """Constants that a dispatch reads as a uniform: what differs between matrices that share a pipeline."""

    words: tuple[int, ...]


@dataclass(frozen=True)
class Vectors:
    """Float32 parameters one after the other, zeros for None: what several products add as their biases."""

    names: tuple[str | None, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Computed:
    """An array that is made once for all plans of a model, known by what it follows from."""

    key: Hashable
    make: Callable[[], npt.NDArray[Any]] = field(compare=False)


Operand = Value | Slice | Words | Vectors | Computed
Unplaced = Value | Words | Vectors | Computed  # what has memory only when the plan is finished


def place(value: Value, places: Mapping[Unplaced, Slice]) -> Slice:
    """Where a value lies, which may be a part of where its stack lies."""
    whole = places[value.root]
    return whole if value.base is None else replace(whole, offset=whole.offset + value.offset, nbytes=value.nbytes)
