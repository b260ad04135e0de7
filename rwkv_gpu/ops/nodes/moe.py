"""Routing, and products with experts."""

from dataclasses import dataclass

from ..graph import Op
from ..values import Value
from ..vocabulary import Activation, Rms, Routing, Weight


@dataclass(frozen=True)
class Route(Op):
    """The experts with the largest logits of each row, and their shares"""

    logits: Value
    router: Weight
    used: int
    normalise: bool
    routing: Routing[Value]

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.logits,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return self.routing.experts, self.routing.shares

    @property
    def label(self) -> str:
        return self.router.name


@dataclass(frozen=True)
class SortChoices(Op):
    """The choices of experts in the order of the experts, and tiles of so many choices"""

    routing: Routing[Value]
    experts: int
    tile: int
    order: Value
    tiles: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.routing.experts,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return self.order, self.tiles


@dataclass(frozen=True)
class ExpertGlu(Op):
    """y[t, j] = then(G_e x[t]) · (U_e x[t]), e = experts[t, j]"""

    x: Value
    gate: Weight
    up: Weight
    routing: Routing[Value]
    then: Activation
    y: Value
    norm: Rms | None = None
    route: Route | None = None
    sorted: SortChoices | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        routing = (self.route.logits,) if self.route else (self.routing.experts,)
        return (self.x, *routing, *(self.sorted.writes if self.sorted else ()))

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y, *(self.route.writes if self.route else ()))

    @property
    def label(self) -> str:
        return f"{self.gate.name} {self.up.name}"

    @property
    def fused(self) -> tuple[str, ...]:
        return ("norm",) * (self.norm is not None) + ("route",) * (self.route is not None)


@dataclass(frozen=True)
class ExpertSum(Op):
    """y[t] = (sum over j of shares[t, j] · D_e h[t, j]) + add[t], e = experts[t, j]"""

    h: Value
    down: Weight
    routing: Routing[Value]
    y: Value
    add: Value | None = None
    sorted: SortChoices | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        read = [self.h, self.routing.experts, self.routing.shares]
        if self.add is not None:
            read.append(self.add)
        return (*read, *(self.sorted.writes if self.sorted else ()))

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y,)

    @property
    def label(self) -> str:
        return self.down.name
