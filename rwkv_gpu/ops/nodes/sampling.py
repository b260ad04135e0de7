"""The choice of tokens."""

from dataclasses import dataclass

from ..graph import Op
from ..values import Value
from ..vocabulary import Choosing


@dataclass(frozen=True)
class Sample(Op):
    """The token of each row, chosen from its logits"""

    logits: Value
    how: Choosing
    chosen: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.logits,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.chosen,)

    @property
    def label(self) -> str:
        return self.how
