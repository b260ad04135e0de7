"""LoRA adapters of matrix products: the products A x, and the sums with B (A x)."""

from dataclasses import dataclass
from typing import ClassVar

from ..graph import Op
from ..values import Value
from ..vocabulary import Activation, Rms, Weight
from .linear import Quantise


@dataclass(frozen=True)
class AdapterDown(Op):
    """low_i = s · (A_i norm(x_i))"""

    xs: tuple[Value, ...]
    factors: tuple[Weight, ...]  # A_i [R, K]
    scales: Value  # s [T, R]
    lows: tuple[Value, ...]  # [T, R], parts of one stack
    columns: Value  # [T, 4], the last part: the range of columns of s that each row has, in vec4s
    norm: Rms | None = None
    whole: bool = False  # whether one dispatch computes all of it
    quantise: Quantise | None = None  # quantisation of x in the same dispatch, for the products that read low
    unit: float = 0.0  # the unit of low if it becomes further columns of the quantised x, before the norm; else 0
    named_by = "factors"
    fuses: ClassVar = {"norm": "norm", "quantise": "quantise", "unit": "columns"}

    @property
    def reads(self) -> tuple[Value, ...]:
        return (*dict.fromkeys(self.xs), self.scales)

    @property
    def writes(self) -> tuple[Value, ...]:
        own = (*self.lows, self.columns) if self.whole and not self.unit else self.lows
        return (*own, *self.quantise.writes) if self.quantise else own


@dataclass(frozen=True)
class Adapted:
    """The adapters of one product: y = x + B low; without adapters, y = x.

    For a matrix with alternating rows, the rows of B alternate too, and there are two lows.
    """

    x: Value
    y: Value
    lows: tuple[Value, ...] = ()
    factor: Weight | None = None  # B [M, R]
    then: Activation = "none"


@dataclass(frozen=True)
class AdapterUp(Op):
    """y_i = scale · then_i(x_i + B_i low_i) + add; if then_i is none, x_i is scaled already

    With `pairs`, y = then(g) · u, where gate g and up u alternate in the sum.
    """

    products: tuple[Adapted, ...]
    scale: float = 1.0
    add: Value | None = None
    pairs: bool = False

    @property
    def reads(self) -> tuple[Value, ...]:
        read = [value for one in self.products for value in (one.x, *one.lows)]
        return (*read, self.add) if self.add is not None else tuple(read)

    @property
    def writes(self) -> tuple[Value, ...]:
        return tuple(one.y for one in self.products)

    @property
    def label(self) -> str:
        return " ".join(one.factor.name for one in self.products if one.factor)
