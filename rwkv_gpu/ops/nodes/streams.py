"""Several residual streams."""

from dataclasses import dataclass

from ..graph import MakesYOfX, Op
from ..values import Value


@dataclass(frozen=True)
class PredictStreams(Op):
    """y_b[t] = x_b[t] + sum over a of coefs[t, S · b + a] · x_a[t]"""

    x: Value  # a stack of S
    coefs: Value
    ys: tuple[Value, ...]

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.x, self.coefs

    @property
    def writes(self) -> tuple[Value, ...]:
        return self.ys


@dataclass(frozen=True)
class CorrectStreams(Op):
    """y_s[t] = x_s[t] + (1 + coefs[t, s]) · (found[t] - x_0[t]) + add[t], y_0 without the last"""

    x: Value  # a stack that begins with as many as there are results
    found: Value
    coefs: Value
    ys: tuple[Value, ...]
    add: Value | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x, self.found, self.coefs, *((self.add,) if self.add is not None else ()))

    @property
    def writes(self) -> tuple[Value, ...]:
        return self.ys


@dataclass(frozen=True)
class MatchLength(MakesYOfX):
    """y[t] = x[t] · |as_long[t]| / |x[t]|"""

    x: Value
    as_long: Value
    y: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.x, self.as_long
