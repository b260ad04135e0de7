"""Recurrences over a matrix for each head, other than RWKV-7's, and what mixes rows for them."""

from dataclasses import dataclass

from ..graph import Op, ReplacesState
from ..values import Value
from ..vocabulary import Cache, DeltaRule, State, Weight
from .conv import Conv1d


@dataclass(frozen=True)
class Lerp(Op):
    """y_i[t] = x[t] + (before[t] - x[t]) · (mix_i + U_i low_i[t])"""

    x: Value
    before: Value
    mix: Weight  # [n, D]
    low: Value | None
    up: Weight | None  # [n · D · R]
    ys: tuple[Value, ...]  # in one stack

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x, self.before) if self.low is None else (self.x, self.before, self.low)

    @property
    def writes(self) -> tuple[Value, ...]:
        return self.ys

    @property
    def label(self) -> str:
        return self.mix.name


@dataclass(frozen=True)
class Wkv6(ReplacesState):
    """The recurrence of RWKV-6 by head"""

    rkvg: Value  # a stack of r, k, v and the gate
    key_heads: int  # that k and v have
    w: Value
    vectors: Weight | None  # [3, D]
    eps: float
    state: State
    y: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.rkvg, self.w

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y,)


@dataclass(frozen=True)
class GatedDeltaRule(Op):
    """The gated delta rule by value head"""

    qkv: Value  # columns of a row, or a stack of the three
    stacked: bool
    beta: Value
    decay: Value  # the same value where both are one tensor
    gate: Value
    how: DeltaRule
    state: State
    y: Value
    conv: Conv1d | None = None  # which it computes itself; qkv is not made then

    @property
    def reads(self) -> tuple[Value, ...]:
        qkv = self.conv.x if self.conv else self.qkv
        return tuple(dict.fromkeys((qkv, self.beta, self.decay, self.gate)))

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y,)

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.state, self.conv.state) if self.conv else (self.state,)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return (self.state, self.conv.state) if self.conv else (self.state,)

    @property
    def label(self) -> str:
        return self.conv.label if self.conv else ""

    @property
    def fused(self) -> tuple[str, ...]:
        return ("conv1d",) if self.conv else ()
