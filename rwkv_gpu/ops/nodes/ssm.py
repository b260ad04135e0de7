"""The nodes of state space models, which read and replace states."""

from dataclasses import dataclass

from ..graph import MakesY, MakesYOfX, ReplacesState
from ..values import Quantised, Value
from ..vocabulary import State, StateSpace, Weight
from .conv import Conv1d
from .recurrence import MayConvolve


@dataclass(frozen=True)
class Ssd(MayConvolve):
    """Mamba-2's recurrence by head, gated; S [P, N]"""

    xbc: Value  # [T, H · P + 2 · G · N]
    projected: Value  # [T, ..], z [H · P] first and dt [H] last
    parameters: StateSpace
    state: State  # [H, P, N]
    groups: int
    y: Value
    conv: Conv1d | None = None  # of `projected`, which it computes itself; xbc is not made then
    merges: bool = False  # with the attention before it, where one dispatch can hold both
    quantises: Quantised | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.projected,) if self.conv else (self.xbc, self.projected)

    @property
    def label(self) -> str:
        return self.parameters.a.name

    @property
    def fused(self) -> tuple[str, ...]:
        return (
            ("conv1d",) * (self.conv is not None)
            + ("merge",) * self.merges
            + ("quantise",) * (self.quantises is not None)
        )


@dataclass(frozen=True)
class SelectiveScan(MakesY, ReplacesState):
    """Mamba's recurrence by channel, gated; S [N]"""

    x: Value  # [T, D]
    dt: Value  # [T, D]
    bc: Value  # [T, 2 · N]
    projected: Value  # [T, ..], z [D] last
    parameters: StateSpace
    state: State  # [D, N]
    y: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x, self.dt, self.bc, self.projected)

    @property
    def label(self) -> str:
        return self.parameters.a.name


@dataclass(frozen=True)
class GroupNorm(MakesYOfX):
    """y = v / sqrt(mean(v²) + eps) · weight + bias, by row and group of columns, v = x or x - mean(x)"""

    x: Value
    weight: Weight | None  # [D]
    groups: int
    eps: float
    y: Value
    centred: bool = False
    bias: Weight | None = None  # [D]

    @property
    def label(self) -> str:
        return self.weight.name if self.weight else ""
