"""The matrices of a dispatch: where each lies in what the dispatch binds, as a table that kernels read."""

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
class Placed:
    """One matrix of a dispatch, and where its input, output and bias lie in what the dispatch binds."""

    shard: Shard
    k: int
    x: int  # in floats, or of quantised rows in vec4s
    y: int
    stride: int
    bias: int
    then: Activation
    scales: tuple[float, float] = (1.0, 1.0)  # of the sums; of gate and of up, where their rows stand in turns

    @property
    def words(self) -> tuple[int, ...]:
        """All that a table says of it, but which blocks it has; planes at the end."""
        own = self.shard.rows, self.k, self.x, self.y, self.stride, self.bias, NUMBER[self.then]
        return (*own, *map(_bits, self.scales), *self.shard.planes)


@dataclass(frozen=True)
class Table:
    """The matrices of a dispatch as its kernel knows them: a uniform, or, in a step of one row, a constant."""

    blocks: int  # of rows of W, over all matrices
    fields: tuple[int, ...]
    matrices: tuple[tuple[int, ...], ...]  # MATRICES of them
    constant: bool

    @classmethod
    def of(
        cls, placed: Sequence[Placed], each: Sequence[int], t_blocks: int, rows: int, parts: int, constant: bool = False
    ) -> "Table":
        """Of products that have so many blocks each."""
        starts = list(itertools.accumulate(each, initial=0))
        matrices = [(start, count, *p.words) for p, count, start in zip(placed, each, starts, strict=False)]
        none = (0,) * len(matrices[0])
        matrices += [none] * (MATRICES - len(placed))
        return cls(starts[-1], (len(placed), starts[-1], t_blocks, rows, parts), tuple(matrices), rows == 1 or constant)

    def joining(self, placed: Placed) -> "Table":
        """With a matrix that has no blocks of its own: its columns follow those of the only one."""
        first, _, *rest = self.matrices
        return replace(self, matrices=(first, (0, 0, *placed.words), *rest))

    @property
    def parts(self) -> tuple[str, str]:
        """What links it to a kernel."""
        return "linear/table", "linear/table/constant" if self.constant else "linear/table/uniform"

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        matrices = tuple(Struct("Matrix", (*words[:-4], Struct("vec4u", words[-4:]))) for words in self.matrices)
        return {"table": Struct("Table", (*self.fields, matrices))} if self.constant else {}

    @property
    def operands(self) -> dict[str, UniformTable]:
        """What the kernel binds."""
        words = [*self.fields, 0, 0, 0]  # a matrix is 16 words, and what follows its eleven starts with a vec4
        for matrix in self.matrices:
            words += [*matrix[:-4], 0, *matrix[-4:]]
        return {} if self.constant else {"table": UniformTable(tuple(words))}


def _bits(number: float) -> int:
    """A float32 as the word that a kernel reads it from."""
    return int(np.float32(number).view(np.uint32))
