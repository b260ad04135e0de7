"""Convolutions over the rows of a sequence."""

from dataclasses import dataclass

from ..graph import ReplacesState
from ..values import Quantised, Value
from ..vocabulary import Activation, State, Weight


@dataclass(frozen=True)
class Conv1d(ReplacesState):
    """y[t, c] = then(sum over i of w[c, i] · x[t - W + 1 + i, first + c] + bias[c]); the last rows are the state"""

    x: Value
    weight: Weight | None  # [C · W], the taps of each channel together; without, y is the row before
    bias: Weight | None  # [C]
    state: State  # [W - 1, C]
    then: Activation
    first: int  # column of x
    gated: bool  # x has three parts: f · h is convolved, and y multiplied by g
    y: Value
    quantises: Quantised | None = None  # what it writes beside y
