"""The causal convolution over the rows of a sequence."""

from dataclasses import dataclass

from ..graph import ReplacesState
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
