"""The table of elementwise ops: for each, its numpy function and the shader part that computes the same.

An activation is a name in `vocabulary.Activation`, a row of FUNCTIONS and a case in the shader part `lib/activation`.
Every product, convolution and expert that takes an activation then takes the new one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gpu.shader import Constant
from .vocabulary import NUMBER, NUMBERS, Activation, Glu

Array = npt.NDArray[Any]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)); if exp overflows, the result is 0, which is correct"""
    with np.errstate(over="ignore"):
        return np.float32(1) / (1 + np.exp(-x))


FUNCTIONS: Mapping[Activation, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "decay": lambda x: np.exp(np.float32(-0.606531) * sigmoid(x)),
    "decay6": lambda x: np.exp(-np.exp(np.minimum(x, np.float32(80)))),  # 0 from 5 on; the bound avoids overflow
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x**3))),
    "softplus": lambda x: np.logaddexp(np.float32(0), x),
    "relu": lambda x: np.maximum(x, np.float32(0)),
}


def clamped_swiglu(gate: Array, up: Array, *numbers: np.float32) -> Array:
    """`ClampedSwiglu` of gate and up, given its numbers"""
    limit, alpha, shift, largest_gate, largest_activated = numbers
    gate = np.minimum(gate, largest_gate)
    y: Array = np.minimum(gate * sigmoid(alpha * gate), largest_activated) * (np.clip(up, -limit, limit) + shift)
    return y


def situ(gate: Array, up: Array, limit: np.float32, up_limit: np.float32) -> Array:
    """`Situ` of gate and up"""
    y: Array = limit * np.tanh(gate / limit) * sigmoid(gate) * (up_limit * np.tanh(up / up_limit))
    return y


def gated(then: Glu, gate: Array, up: Array) -> Array:
    """then(gate) · up, or a `ClampedSwiglu` or `Situ`"""
    if not isinstance(then, str):
        return ELEMENTWISE[then.f].compute(gate, up, *map(np.float32, then.numbers))
    return FUNCTIONS[then](gate) * up


def xielu(x: Array, positive: np.float32, negative: np.float32, beta: np.float32, eps: np.float32) -> Array:
    """`Xielu` of x"""
    y: Array = np.where(x > 0, positive * x * x, negative * (np.expm1(np.minimum(x, eps)) - x)) + beta * x
    return y


def gelu_erf(x: Array) -> Array:
    """The exact form of GELU; erf by formula 7.1.26 of Abramowitz and Stegun, within 1.5e-7"""
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    sum_ = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * np.float32(1.061405429)))))
    y: Array = (x + np.abs(x) * (1 - sum_ * np.exp(-z * z))) / 2
    return y


@dataclass(frozen=True)
class Elementwise:
    """y = f(x, numbers) or f(x, z, numbers), by element."""

    compute: Callable[..., Array]  # the function in numpy
    part: str  # the shader part
    numbers: tuple[str, ...] = ()  # names of the numbers in the part
    links: tuple[str, ...] = ()  # further parts that it needs
    constants: Mapping[str, Constant] = field(default_factory=dict)  # fixed constants of the part


ELEMENTWISE: Mapping[str, Elementwise] = {
    "softcap": Elementwise(lambda x, cap: cap * np.tanh(x / cap), "dense/unary/softcap", ("NUMBER",)),
    "clamp": Elementwise(lambda x, limit: np.clip(x, -limit, limit), "dense/unary/clamp", ("NUMBER",)),
    "clip": Elementwise(lambda x, low, high: np.clip(x, low, high), "dense/unary/clip", ("LOW", "HIGH")),
    "scale": Elementwise(lambda x, by: by * x, "dense/unary/scale", ("NUMBER",)),
    "signed_root": Elementwise(
        lambda x, least: np.sign(x) * np.sqrt(np.maximum(np.abs(x), least)), "dense/unary/signed_root", ("LEAST",)
    ),
    "swish": Elementwise(lambda x, by: x * sigmoid(by * x), "dense/unary/swish", ("NUMBER",)),
    "gelu_erf": Elementwise(gelu_erf, "dense/unary/gelu_erf"),
    "xielu": Elementwise(xielu, "dense/unary/xielu", ("POSITIVE", "NEGATIVE", "BETA", "LEAST")),
    "add": Elementwise(np.add, "dense/binary/add"),
    "mul": Elementwise(np.multiply, "dense/binary/mul"),
    "shift_columns": Elementwise(np.add, "dense/binary/add"),
    "scale_columns": Elementwise(np.multiply, "dense/binary/mul"),
    "glu": Elementwise(
        clamped_swiglu,
        "dense/binary/glu",
        ("LIMIT", "ALPHA", "SHIFT", "MAX_GATE", "MAX_ACTIVATED"),
        links=("moe/glu/clamped_swiglu",),
        constants={"THEN": NUMBER["none"]},
    ),
    "situ": Elementwise(situ, "dense/binary/glu", ("LIMIT", "UP_LIMIT"), links=("moe/glu/situ",)),
    **{
        name: Elementwise(
            function, "dense/unary/activation", links=("lib/activation",), constants={"THEN": NUMBER[name], **NUMBERS}
        )
        for name, function in FUNCTIONS.items()
    },
}
