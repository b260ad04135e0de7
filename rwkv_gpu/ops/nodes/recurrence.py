"""Recurrences over a matrix for each head, other than RWKV-7's, and what mixes rows for them."""

from dataclasses import dataclass

from ..graph import MayQuantise, Op, ReplacesState
from ..values import Quantised, Value
from ..vocabulary import Cache, DeltaRule, State, Weight
from .conv import Conv1d
from .linear import Gemm


class MayConvolve(MayQuantise):
    """What one has that may compute a convolution on the way."""

    state: State
    conv: Conv1d | None

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.state, self.conv.state) if self.conv else (self.state,)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return self.states_read


class MayHaveLora(MayQuantise, ReplacesState):
    """What one has that may compute a LoRA on the way."""

    lora: Gemm | None

    @property
    def label(self) -> str:
        return self.lora.label if self.lora else ""

    @property
    def fused(self) -> tuple[str, ...]:
        return ("lora",) * (self.lora is not None) + ("quantise",) * (self.quantises is not None)


@dataclass(frozen=True)
class Lerp(Op):
    """y_i[t] = x[t] + (before[t] - x[t]) · (mix_i + U_i low_i[t])"""

    x: Value
    before: Value | State  # the rows before, or the state that holds them, where each sequence has one row
    mix: Weight  # [n, D]
    low: Value | None
    up: Weight | None  # [n · D · R]
    ys: tuple[Value, ...]  # in one stack

    @property
    def rank(self) -> int:
        """Numbers that a row of U has; 0 without one."""
        return 0 if self.low is None else self.low.shape[1] // len(self.ys)

    @property
    def mixes_few_rows(self) -> bool:
        """Whether lanes can share a row of U: the kernel for one row of each sequence does that."""
        return self.rank > 0 and self.rank % 4 == 0 and self.x.shape[1] % 4 == 0

    @property
    def reads(self) -> tuple[Value, ...]:
        return tuple(one for one in (self.x, self.before, self.low) if isinstance(one, Value))

    @property
    def writes(self) -> tuple[Value, ...]:
        return self.ys

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.before,) if isinstance(self.before, State) else ()

    @property
    def label(self) -> str:
        return self.mix.name


@dataclass(frozen=True)
class Wkv6(MayHaveLora):
    """The recurrence of RWKV-6 by head"""

    rkvg: Value  # a stack of r, k, v and the gate
    key_heads: int  # that k and v have
    w: Value
    vectors: Weight | None  # [3, D]
    eps: float
    state: State
    y: Value
    lora: Gemm | None = None  # which makes w on the way
    quantises: Quantised | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.rkvg, *(self.lora.reads if self.lora else (self.w,)))


@dataclass(frozen=True)
class LightningAttention(MayQuantise, ReplacesState):
    """Linear attention by head, with one decay for each"""

    qkv: Value  # [T, H · 3 · N]
    decays: tuple[float, ...]  # [H]
    state: State
    y: Value
    quantises: Quantised | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.qkv,)


@dataclass(frozen=True)
class GatedDeltaRule(MayConvolve):
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
    quantises: Quantised | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        qkv = self.conv.x if self.conv else self.qkv
        return tuple(dict.fromkeys((qkv, self.beta, self.decay, self.gate)))

    @property
    def label(self) -> str:
        return self.conv.label if self.conv else ""

    @property
    def fused(self) -> tuple[str, ...]:
        return ("conv1d",) * (self.conv is not None) + ("quantise",) * (self.quantises is not None)
