"""Nodes that treat every row alike, and shaders by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...gpu.shader import Constant
from ..graph import MakesY, MakesYOfX, MayQuantise, Op
from ..values import Operand, Quantised, Value
from ..vocabulary import Cache, LayerNorm, Rms, Weight


@dataclass(frozen=True)
class Embed(MakesY):
    """y[t] = norm(scale · W[ids[t]]), or of the position of t"""

    ids: Value | None
    weight: Weight
    y: Value
    norm: LayerNorm | None = None
    scale: float = 1.0  # of what is read
    positions: Cache | None = None  # whose pages say the position of each row, where there are no ids

    @property
    def reads(self) -> tuple[Value, ...]:
        return () if self.ids is None else (self.ids,)

    @property
    def label(self) -> str:
        return self.weight.name

    @property
    def fused(self) -> tuple[str, ...]:
        return ("layer_norm",) if self.norm else ()


@dataclass(frozen=True)
class Norm(MayQuantise):
    """y = after · (scale · norm(x) + add), by row"""

    x: Value
    how: Rms | LayerNorm
    y: Value
    add: Value | None = None
    scale: float = 1.0
    after: float = 1.0
    quantises: Quantised | None = None  # what it writes beside y
    next_norm: Rms | None = None  # that what it quantises goes through next

    @property
    def plain(self) -> bool:
        """Whether it is the norm and nothing else, so that a product can do it while it reads x."""
        return self.add is None and self.scale == self.after == 1.0 and self.how.weight is not None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,) if self.add is None else (self.x, self.add)

    @property
    def fused(self) -> tuple[str, ...]:
        return ("quantise",) if self.quantises else ()

    @property
    def label(self) -> str:
        return self.how.weight.name if self.how.weight else ""


@dataclass(frozen=True)
class Map(MakesY):
    """y = f(x, numbers) or f(x, z, numbers), by element"""

    f: str  # a row of ELEMENTWISE
    inputs: tuple[Value, ...]  # x, and z where f reads it and it is no parameter
    y: Value
    numbers: tuple[float, ...] = ()
    first: int = 0  # column of z from which on it is read
    vector: Weight | None = None  # [D], z in every row

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.inputs

    @property
    def label(self) -> str:
        return self.f


@dataclass(frozen=True)
class ScaleRows(MakesY):
    """y[t] = x[t] · by[t] + add[t]"""

    x: Value
    by: Value  # [T, H], of each of H parts of a row
    y: Value
    add: Value | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x, self.by, *((self.add,) if self.add is not None else ()))


@dataclass(frozen=True)
class ByRow(MakesYOfX):
    """y = softmax(x), y = argmax(x) or what exceeds a bound, by row"""

    f: str  # softmax, argmax, excess
    x: Value
    y: Value
    number: float = 0.0  # of excess

    @property
    def label(self) -> str:
        return self.f


@dataclass(frozen=True)
class Copy(MakesYOfX):
    """y = x, where y lies in a stack that a kernel reads whole"""

    x: Value
    y: Value


@dataclass(frozen=True)
class ResizeHeads(MakesYOfX):
    """y[t, h] = x[t, h], cut or with zeros behind it"""

    x: Value
    heads: int
    y: Value


@dataclass(frozen=True)
class Pick(MakesYOfX):
    """y = the rows of x whose logits are asked for"""

    x: Value
    y: Value


@dataclass(frozen=True)
class Kernel(Op):
    """A shader by name, for probes of a device: no model says it"""

    shader: tuple[str, ...]  # the kernel and its parts
    constants: Mapping[str, Constant]
    operands: Mapping[str, Operand]  # all written, as far as they are values
    groups: int

    @property
    def writes(self) -> tuple[Value, ...]:
        return tuple(operand for operand in self.operands.values() if isinstance(operand, Value))
