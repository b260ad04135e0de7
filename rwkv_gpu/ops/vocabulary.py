"""The vocabulary that models speak: every op with its maths, and nothing of how it is computed.

`Reference` computes an op in numpy, `Recorder` turns it into dispatches; a model is written once, for both.
T rows, D model width, K in, M out, V vocabulary. Activations are [T, D] float32, ids are [T] uint32.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

Activation = Literal["none", "relu2", "silu", "sigmoid", "tanh"]


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
class State:
    """What a sequence carries from step to step; each interpreter holds a slot of it for every sequence."""

    name: str
    shape: tuple[int, ...]  # of one slot


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

    def activate(self, x: Tensor, then: Activation) -> Tensor:
        """y = then(x): relu2 is max(x, 0)², silu is x · sigmoid(x)"""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y"""

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """x · y, by element"""

    def softmax(self, x: Tensor) -> Tensor:
        """y = exp(x - max(x)) / sum(exp(x - max(x))), by row"""

    def argmax(self, x: Tensor) -> Tensor:
        """The index of the largest element by row, the first of equals; uint32 [T]"""
