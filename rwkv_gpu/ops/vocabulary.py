"""The vocabulary that models speak: every op with its maths, and nothing of how it is computed.

`Reference` computes an op in numpy, `Recorder` turns it into dispatches; a model is written once, for both.
T rows, D model width, K in, M out, V vocabulary. Activations are [T, D] float32, ids are [T] uint32.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, get_args

Activation = Literal["none", "relu2", "silu", "sigmoid", "tanh", "decay"]

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
NUMBER = {name: number for number, name in enumerate(ACTIVATIONS)}  # as shaders know them
NUMBERS = {name.upper(): number for name, number in NUMBER.items()}


class Shaped(Protocol):
    """What models may know of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...


Tensor = TypeVar("Tensor", bound=Shaped)


@dataclass(frozen=True)
class Weight:
    """A named parameter; each interpreter holds its values in its own way."""

    name: str
    shape: tuple[int, ...]  # [M, K] of a matrix, [D] of a vector


@dataclass(frozen=True)
class Joined(Weight):
    """Vectors laid under one another as float32, so that a kernel reads one [n, D]; the name is of the whole."""

    parts: tuple[Weight, ...] = ()  # [D] each, or [n, D]


@dataclass(frozen=True)
class State:
    """What a sequence carries from step to step; each interpreter holds a slot of it for every sequence."""

    name: str
    shape: tuple[int, ...]  # of one slot


@dataclass(frozen=True)
class Mixed(Generic[Tensor]):
    """What an RWKV-7 time mix made of its input, before anything looks back in time: all [T, D]."""

    r: Tensor  # receptance
    w: Tensor  # decay, between 0 and 1
    k: Tensor
    v: Tensor
    a: Tensor  # in-context learning rate, between 0 and 1
    gate: Tensor | None = None
    v_gate: Tensor | None = None  # how much of v_first is mixed in, between 0 and 1
    v_first: Tensor | None = None  # v of the first layer


class Ops(Protocol[Tensor]):
    """What a model can say."""

    def layer(self, index: int) -> AbstractContextManager[None]:
        """Names what is said inside after block `index`; a plan may be split between blocks."""

    def embed(self, weight: Weight, ids: Tensor) -> Tensor:
        """y[t] = W[ids[t]]"""

    def layer_norm(self, x: Tensor, weight: Weight, bias: Weight, eps: float) -> Tensor:
        """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, by row"""

    def rms_norm(self, x: Tensor, weight: Weight, eps: float) -> Tensor:
        """y = x / sqrt(mean(x²) + eps) * weight, by row"""

    def linear(
        self,
        x: Tensor,
        weight: Weight,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        add: Tensor | None = None,
    ) -> Tensor:
        """y[t] = then(W x[t] + bias) + add[t]"""

    def linears(
        self,
        xs: Sequence[Tensor],
        weights: Sequence[Weight],
        *,
        then: Sequence[Activation] | None = None,
        bias: Sequence[Weight | None] | None = None,
    ) -> tuple[Tensor, ...]:
        """y_i[t] = then_i(W_i x_i[t] + bias_i), all at once where the formats agree"""

    def glu(self, x: Tensor, weight: Weight, then: Activation) -> Tensor:
        """y[t] = then(G x[t]) · (U x[t]), where the rows of G and U alternate in W"""

    def activate(self, x: Tensor, then: Activation) -> Tensor:
        """y = then(x): relu2 is max(x, 0)², silu is x · sigmoid(x), decay is exp(-0.606531 · sigmoid(x))"""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y"""

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """x · y, by element"""

    def softmax(self, x: Tensor) -> Tensor:
        """y = exp(x - max(x)) / sum(exp(x - max(x))), by row"""

    def argmax(self, x: Tensor) -> Tensor:
        """The index of the largest element by row, the first of equals; uint32 [T]"""

    def norm_shift_mix(
        self, x: Tensor, weight: Weight, bias: Weight, eps: float, mix: Weight, state: State
    ) -> tuple[Tensor, ...]:
        """y_i[t] = xx[t] + (xx[t - 1] - xx[t]) · mix_i, with xx = layer_norm(x), for each row of mix [n, D]

        Before a segment's first row stands what the state holds: the sequence's last x, [D]; before its very first
        token xx is zero. The state becomes x of the segment's last row.
        """

    def time_mix(self, x: Mixed[Tensor], vectors: Weight, eps: float, state: State) -> Tensor:
        """The recurrence of RWKV-7 by segment and head, over S [N, N] = [value, key]; `vectors` [5, D] holds
        k_k, k_a, r_k and the weight and bias of the norm.

        κ = k · k_k / max(|k · k_k|, 1e-12)             k = k · (1 + (a - 1) · k_a)
        v = v + (v_first - v) · v_gate                  where there is a v_gate
        S = S diag(w) + v kᵀ - (S κ) (κ · a)ᵀ           from the state, [H, N, N], from zeros before the first token
        y = (norm(S r) · weight + bias + (sum r · k · r_k) · v) · gate       norm over the head, with eps
        """

    def pick(self, x: Tensor) -> Tensor:
        """The rows whose logits are asked for: y [R, D]. What is said after it has these rows only."""
