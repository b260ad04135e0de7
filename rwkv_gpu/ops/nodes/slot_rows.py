"""Ops over the last rows of each sequence, which a slot keeps from step to step."""

from dataclasses import dataclass
from typing import ClassVar

from ..graph import Op
from ..values import Value
from ..vocabulary import SlotRows


@dataclass(frozen=True)
class Concat(Op):
    """z[t] = [x[t] | y[t]]"""

    x: Value
    y: Value
    z: Value
    makes: ClassVar = ("z",)


@dataclass(frozen=True)
class RowBefore(Op):
    """y[t] = the row `back` positions before that of t in `rows`, for one row of each sequence"""

    rows: SlotRows
    y: Value
    back: int = 1
    recalls = ("rows",)


@dataclass(frozen=True)
class KeepRows(Op):
    """`rows` has x of the last rows of each segment"""

    x: Value
    rows: SlotRows
    replaces = ("rows",)


@dataclass(frozen=True)
class ShiftRows(Op):
    """y[t] = x[t - 1], or the row before the segment in `rows`, which then has x of its last rows"""

    x: Value
    rows: SlotRows
    y: Value
    recalls = replaces = ("rows",)
