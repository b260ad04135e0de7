"""Attention over pages."""

from dataclasses import dataclass

from ..graph import Op
from ..values import Value
from ..vocabulary import Attention, Cache, State


@dataclass(frozen=True)
class Attend(Op):
    """Every row's look back over the pages of its sequence, which hold its own k and v then, too"""

    qkv: Value  # a stack of the three
    cache: Cache
    how: Attention
    y: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.qkv,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y,)

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.cache,)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return (self.cache,)
