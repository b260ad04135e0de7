"""LoRA adapters beside matrix products: the small products of A, and those of B that are added."""

from dataclasses import dataclass

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
    columns: Value  # [T, 4], the last part: the columns that each row has of s, from and to, in fours
    norm: Rms | None = None
    whole: bool = False  # whether one dispatch makes all of it
    beside: Quantise | None = None  # of x, for the products that it adds to
    unit: float = 0.0  # of x, which is not normed yet, in which low is a further column of it; 0 where it is none

    @property
    def reads(self) -> tuple[Value, ...]:
        return (*dict.fromkeys(self.xs), self.scales)

    @property
    def writes(self) -> tuple[Value, ...]:
        own = (*self.lows, self.columns) if self.whole and not self.unit else self.lows
        return (*own, *self.beside.writes) if self.beside else own

    @property
    def label(self) -> str:
        return " ".join(one.name for one in self.factors)

    @property
    def fused(self) -> tuple[str, ...]:
        return (
            ("norm",) * (self.norm is not None)
            + ("quantise",) * (self.beside is not None)
            + ("columns",) * (self.unit > 0)
        )


@dataclass(frozen=True)
class Adapted:
    """What becomes of one product: x + B low, or x where it has no adapters.

    Where two matrices alternate, so do the rows of B, and each has a low of its own.
    """

    x: Value
    y: Value
    lows: tuple[Value, ...] = ()
    factor: Weight | None = None  # B [M, R]
    then: Activation = "none"


@dataclass(frozen=True)
class AdapterUp(Op):
    """y_i = scale · then_i(x_i + B_i low_i) + add; where then_i is none, x_i is scaled already

    Of gate and up in pairs it is y = then(g) · u, of numbers g and u that alternate in the sum.
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
