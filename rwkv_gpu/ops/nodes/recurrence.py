"""Ops of recurrent models: recurrences over states, the mixing of rows before them, and norms of heads after them."""

from dataclasses import dataclass
from typing import ClassVar

from ..graph import Op, ReplacesState
from ..values import Quantised, Value
from ..vocabulary import Cache, DeltaRule, LayerNorm, Mixed, State, StateSpace, Weight
from .conv import Conv1d
from .linear import Gemm


class MayConvolve(Op):
    """Base of recurrences that may compute the convolution before them."""

    state: State
    conv: Conv1d | None

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.state, self.conv.state) if self.conv else (self.state,)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return self.states_read


class MayHaveLora(ReplacesState):
    """Base of recurrences that may compute the LoRA before them."""

    lora: Gemm | None
    fuses: ClassVar = {"lora": "lora", "quantises": "quantise"}
    named_by = "lora"


@dataclass(frozen=True)
class Lerp(Op):
    """y_i[t] = x[t] + (before[t] - x[t]) · (mix_i + U_i low_i[t])"""

    x: Value
    before: Value | State  # the previous rows, or the state that holds them if each sequence has one row
    mix: Weight  # [n, D]
    low: Value | None
    up: Weight | None  # [n · D · R]
    ys: tuple[Value, ...]  # values of one stack

    @property
    def rank(self) -> int:
        """The rank R of U; 0 without U."""
        return 0 if self.low is None else self.low.shape[1] // len(self.ys)

    @property
    def mixes_few_rows(self) -> bool:
        """True if the kernel for one row per sequence applies, whose lanes share a row of U."""
        return self.rank > 0 and self.rank % 4 == 0 and self.x.shape[1] % 4 == 0

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.before,) if isinstance(self.before, State) else ()

    named_by = "mix"


@dataclass(frozen=True)
class Wkv6(MayHaveLora):
    """The recurrence of RWKV-6 by head"""

    rkvg: Value  # a stack of r, k, v and the gate
    key_heads: int  # number of heads of k and v
    w: Value
    vectors: Weight | None  # [3, D]
    eps: float
    state: State
    y: Value
    lora: Gemm | None = None  # the LoRA that computes w, if fused
    quantises: Quantised | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.rkvg, *(self.lora.reads if self.lora else (self.w,)))


@dataclass(frozen=True)
class LightningAttention(ReplacesState):
    """Linear attention by head, with one decay per head"""

    qkv: Value  # [T, H · 3 · N]
    decays: tuple[float, ...]  # [H]
    state: State
    y: Value
    quantises: Quantised | None = None


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
    conv: Conv1d | None = None  # the convolution that makes qkv, if fused
    quantises: Quantised | None = None
    fuses: ClassVar = {"conv": "conv1d", "quantises": "quantise"}

    @property
    def reads(self) -> tuple[Value, ...]:
        qkv = self.conv.x if self.conv else self.qkv
        return tuple(dict.fromkeys((qkv, self.beta, self.decay, self.gate)))

    named_by = "conv"


@dataclass(frozen=True)
class TokenShift(ReplacesState):
    """y_i[t] = xx[t] + (xx[t - 1] - xx[t]) · mix_i, with xx = layer_norm(x); the last xx is saved as the state"""

    x: Value
    norm: LayerNorm
    mix: Weight  # [n, D]
    state: State
    ys: tuple[Value, ...]  # values of one stack; if two more than rows of mix, the last are xx[t] and xx[t - 1]
    quantises: Quantised | None = None

    @property
    def label(self) -> str:
        return self.norm.weight.name if self.norm.weight else ""


@dataclass(frozen=True)
class TimeMix(MayHaveLora):
    """The recurrence of RWKV-7 by head; `lora`, if fused, computes w, a and the gates"""

    x: Mixed[Value]
    vectors: Weight  # [5, D], or [3, D] without a norm
    eps: float
    state: State
    y: Value
    lora: Gemm | None = None
    quantises: Quantised | None = None

    @property
    def normed(self) -> bool:
        """True if the result of a head is normed."""
        return self.vectors.shape[0] == 5

    @property
    def gates(self) -> tuple[Value | None, ...]:
        """w, a, the gate and the gate of v."""
        return self.x.w, self.x.a, self.x.gate, self.x.v_gate

    @property
    def reads(self) -> tuple[Value, ...]:
        gates = self.lora.reads if self.lora else tuple(gate for gate in self.gates if gate is not None)
        first = () if self.x.v_first is None else (self.x.v_first,)
        return (self.x.r, self.x.k, self.x.v, *gates, *first)


@dataclass(frozen=True)
class Ssd(MayConvolve):
    """Mamba-2's recurrence by head, gated; S [P, N]"""

    xbc: Value  # [T, H · P + 2 · G · N]
    projected: Value  # [T, ..], z [H · P] first and dt [H] last
    parameters: StateSpace
    state: State  # [H, P, N]
    groups: int
    y: Value
    conv: Conv1d | None = None  # the convolution of `projected` that makes xbc, if fused
    merges: bool = False  # whether it shares the dispatch of the attention before it, if one dispatch can hold both
    quantises: Quantised | None = None
    fuses: ClassVar = {"conv": "conv1d", "merges": "merge", "quantises": "quantise"}

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.projected,) if self.conv else (self.xbc, self.projected)

    @property
    def label(self) -> str:
        return self.parameters.a.name


@dataclass(frozen=True)
class SelectiveScan(ReplacesState):
    """Mamba's recurrence by channel, gated; S [N]"""

    x: Value  # [T, D]
    dt: Value  # [T, D]
    bc: Value  # [T, 2 · N]
    projected: Value  # [T, ..], z [D] last
    parameters: StateSpace
    state: State  # [D, N]
    y: Value

    @property
    def label(self) -> str:
        return self.parameters.a.name


@dataclass(frozen=True)
class Wkv4(ReplacesState):
    """RWKV-4's average of values by channel"""

    r: Value  # [T, D]
    k: Value  # [T, D]
    v: Value  # [T, D]
    vectors: Weight  # [2, D]
    state: State  # [3, D]
    y: Value


@dataclass(frozen=True)
class GroupNorm(Op):
    """y = v / sqrt(mean(v²) + eps) · weight + bias, by row and group of columns, v = x or x - mean(x)"""

    x: Value
    weight: Weight | None  # [D]
    groups: int
    eps: float
    y: Value
    centred: bool = False
    bias: Weight | None = None  # [D]
