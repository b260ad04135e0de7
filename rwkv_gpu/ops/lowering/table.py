"""The table of matrices that product kernels read: the place of each matrix in the bindings of the dispatch."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...gpu.shader import Constant, Struct
from ...gpu.weights import Shard
from ..tracer import MATRICES
from ..values import UniformTable
from ..vocabulary import NUMBER, Activation


@dataclass(frozen=True)
class Matrix:
    """One matrix of a dispatch, and the offsets of its input, output and bias in their bindings."""

    shard: Shard
    k: int
    x: int  # start of x in floats, or in vec4s for quantised rows
    y: int
    stride: int
    bias: int
    then: Activation
    scales: tuple[float, float] = (1.0, 1.0)  # factors of the sums; for alternating rows, those of gate and up

    @property
    def words(self) -> tuple[int, ...]:
        """Its entry in the table without the block range; the planes come last."""
        own = self.shard.rows, self.k, self.x, self.y, self.stride, self.bias, NUMBER[self.then]
        return (*own, *map(_bits, self.scales), *self.shard.planes)


@dataclass(frozen=True)
class Table:
    """The table of a dispatch: a constant in steps of one row, else a uniform."""

    blocks: int  # blocks of rows of W, over all matrices
    fields: tuple[int, ...]
    matrices: tuple[tuple[int, ...], ...]  # MATRICES entries
    constant: bool

    @classmethod
    def of(
        cls, placed: Sequence[Matrix], each: Sequence[int], t_blocks: int, rows: int, parts: int, constant: bool = False
    ) -> "Table":
        """The table of matrices. Matrix i has `each[i]` blocks of rows of W, and x has `t_blocks` blocks of rows."""
        starts = list(itertools.accumulate(each, initial=0))
        matrices = [(start, count, *p.words) for p, count, start in zip(placed, each, starts, strict=False)]
        none = (0,) * len(matrices[0])
        matrices += [none] * (MATRICES - len(placed))
        return cls(starts[-1], (len(placed), starts[-1], t_blocks, rows, parts), tuple(matrices), rows == 1 or constant)

    def joining(self, placed: Matrix) -> "Table":
        """The same table with a second matrix. Its columns follow those of the first matrix, so it adds no blocks."""
        first, _, *rest = self.matrices
        return replace(self, matrices=(first, (0, 0, *placed.words), *rest))

    @property
    def parts(self) -> tuple[str, str]:
        """The shader parts that read it."""
        return "linear/table", "linear/table/constant" if self.constant else "linear/table/uniform"

    @property
    def constants(self) -> dict[str, Constant]:
        """Constants of the kernel."""
        matrices = tuple(Struct("Matrix", (*words[:-4], Struct("vec4u", words[-4:]))) for words in self.matrices)
        return {"table": Struct("Table", (*self.fields, matrices))} if self.constant else {}

    @property
    def operands(self) -> dict[str, UniformTable]:
        """Operands of the kernel."""
        words = [*self.fields, 0, 0, 0]  # an entry is 16 words: eleven, padding, and a vec4 of planes
        for matrix in self.matrices:
            words += [*matrix[:-4], 0, *matrix[-4:]]
        return {} if self.constant else {"table": UniformTable(tuple(words))}


def _bits(number: float) -> int:
    """The bits of a number as float32."""
    return int(np.float32(number).view(np.uint32))
