"""The nodes of RWKV-7, which read and replace states."""

from dataclasses import dataclass

from ..graph import ReplacesState
from ..values import Quantised, Value
from ..vocabulary import LayerNorm, Mixed, State, Weight
from .linear import Gemm
from .recurrence import MayHaveLora


@dataclass(frozen=True)
class TokenShift(ReplacesState):
    """y_i[t] = xx[t] + (xx[t - 1] - xx[t]) · mix_i, with xx = layer_norm(x); the last xx is saved as the state"""

    x: Value
    norm: LayerNorm
    mix: Weight  # [n, D]
    state: State
    ys: tuple[Value, ...]  # in one stack; two more than rows of mix are xx[t] and xx[t - 1]
    quantises: Quantised | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (*self.ys, self.quantises.value) if self.quantises else self.ys

    @property
    def label(self) -> str:
        return self.norm.weight.name if self.norm.weight else ""

    @property
    def fused(self) -> tuple[str, ...]:
        return ("quantise",) if self.quantises else ()


@dataclass(frozen=True)
class TimeMix(MayHaveLora):
    """The recurrence of RWKV-7 by head; `lora` computes w, a and the gates on the way"""

    x: Mixed[Value]
    vectors: Weight  # [5, D], or [3, D] without a norm
    eps: float
    state: State
    y: Value
    lora: Gemm | None = None
    quantises: Quantised | None = None

    @property
    def normed(self) -> bool:
        """Whether the result of a head is normed."""
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
