"""Convolutions over the rows of a sequence."""

from dataclasses import dataclass

from ..graph import Op, ReplacesState
from ..values import Quantised, Value
from ..vocabulary import Activation, State, Weight


@dataclass(frozen=True)
class Conv1d(ReplacesState):
    """y[t, c] = then(sum over i of w[c, i] · x[t - W + 1 + i, first + c] + bias[c]); the last rows are the state"""

    x: Value
    weight: Weight | None  # [C · W], the taps of each channel together; None: y is the row before
    bias: Weight | None  # [C]
    state: State  # [W - 1, C]
    then: Activation
    first: int  # column of x
    gated: bool  # x has three parts f, g, h: f · h is convolved, and the result multiplied by g
    y: Value
    quantises: Quantised | None = None  # y as integers or float16, written in addition


@dataclass(frozen=True)
class CentredConv1d(Op):
    """y[t, c] = sum over i of w[c, i] · x[t - W // 2 + i, c] + bias[c], over the rows of a segment"""

    x: Value
    weight: Weight  # [C · W], the taps of each channel together
    bias: Weight | None  # [C]
    y: Value
