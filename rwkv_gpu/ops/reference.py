"""Ops in numpy: the meaning of each op, the oracle of every kernel, and what `--device cpu` runs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .vocabulary import Activation, Weight

Array = npt.NDArray[Any]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)); where exp overflows the quotient is 0, as it should be"""
    with np.errstate(over="ignore"):
        return np.float32(1) / (1 + np.exp(-x))


ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
}


class Reference:
    """Runs each op at once; `weights` maps a name to its float32 values."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = weights

    @contextlib.contextmanager
    def layer(self, index: int) -> Iterator[None]:  # noqa: ARG002 - numpy has no use for names
        yield

    def embed(self, weight: Weight, ids: Array) -> Array:
        return self.weights[weight.name][ids]

    def layer_norm(self, x: Array, weight: Weight, bias: Weight, eps: float) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(eps))
        y: Array = centred * scale * self.weights[weight.name] + self.weights[bias.name]
        return y

    def rms_norm(self, x: Array, weight: Weight, eps: float) -> Array:
        scale = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.float32(eps))
        y: Array = x * scale * self.weights[weight.name]
        return y

    def linear(
        self,
        x: Array,
        weight: Weight,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        add: Array | None = None,
    ) -> Array:
        y = x @ self.weights[weight.name].T
        if bias is not None:
            y = y + self.weights[bias.name]
        y = ACTIVATIONS[then](y)
        return y if add is None else y + add

    def linears(
        self,
        xs: Sequence[Array],
        weights: Sequence[Weight],
        *,
        then: Sequence[Activation] | None = None,
        bias: Sequence[Weight | None] | None = None,
    ) -> tuple[Array, ...]:
        thens = then or ["none"] * len(weights)
        biases = bias or [None] * len(weights)
        rows = zip(xs, weights, thens, biases, strict=True)
        return tuple(self.linear(x, w, then=t, bias=b) for x, w, t, b in rows)

    def activate(self, x: Array, then: Activation) -> Array:
        return ACTIVATIONS[then](x)

    def add(self, x: Array, y: Array) -> Array:
        y = x + y
        return y

    def mul(self, x: Array, y: Array) -> Array:
        y = x * y
        return y

    def softmax(self, x: Array) -> Array:
        e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
        y: Array = e / e.sum(axis=-1, keepdims=True)
        return y

    def argmax(self, x: Array) -> Array:
        return np.asarray(x.argmax(axis=-1), np.uint32)
