"""Ops of mixtures of experts: routing, and products with experts."""

from dataclasses import dataclass
from typing import ClassVar

from ...gpu.weights import ExpertCache
from ..graph import Op
from ..values import Quantised, Value
from ..vocabulary import Gating, Glu, Rms, Routing, Weight


@dataclass(frozen=True)
class Route(Op):
    """Selects the experts of each row, and their shares, from its logits"""

    logits: Value
    router: Weight
    how: Gating
    routing: Routing[Value]
    makes: ClassVar = ("routing",)
    named_by = "router"


@dataclass(frozen=True)
class RouteKnown(Op):
    """The shares of experts that are known, from the logits of each row"""

    logits: Value
    known: Value  # [T, n], experts as floats
    router: Weight
    how: Gating
    routing: Routing[Value]
    makes: ClassVar = ("routing",)
    named_by = "router"


@dataclass(frozen=True)
class GroupChoices(Op):
    """Maps the experts e of each row to e // size, and their shares to scale · shares"""

    routing: Routing[Value]
    size: int
    scale: float
    grouped: Routing[Value]
    makes: ClassVar = ("grouped",)


@dataclass(frozen=True)
class FetchExperts(Op):
    """Looks up the slots of the chosen experts in the expert cache, after copying missing experts into it"""

    experts: Value
    cache: ExpertCache
    slots: Value
    makes: ClassVar = ("slots",)

    @property
    def label(self) -> str:
        return " ".join(self.cache.weights)


@dataclass(frozen=True)
class SortChoices(Op):
    """Sorts the choices by expert, into tiles of `tile` choices"""

    routing: Routing[Value]
    experts: int
    tile: int
    order: Value
    tiles: Value
    route: Route | None = None
    named_by = "route"
    fuses: ClassVar = {"route": "route"}

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.route.logits,) if self.route else (self.routing.experts,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (*self.ordered, *(self.route.writes if self.route else ()))

    @property
    def ordered(self) -> tuple[Value, Value]:
        """The results that products with several choices at a time read."""
        return self.order, self.tiles


@dataclass(frozen=True)
class ExpertProducts(Op):
    """y[t, j] = then(W_e x[t] + b_e), or of two matrices then(G_e x[t] + b_G,e) · (U_e x[t] + b_U,e), e = experts[t, j]

    Sums are multiplied by scales before biases are added. If `scaled`, x[t] is multiplied by shares[t, j] first. An
    x [T, used, K] has one row per choice.
    """

    x: Value
    weights: tuple[Weight, ...]  # [E, M, K] each; if a gated op has one weight, it holds gate and up, [E, 2 · M, K]
    routing: Routing[Value]
    then: Glu
    y: Value
    biases: tuple[Weight, ...] = ()  # [E · M] each
    scales: tuple[Weight, ...] = ()  # [E] each
    scaled: bool = False
    gated: bool = False
    norm: Rms | None = None
    route: Route | None = None
    sorted: SortChoices | None = None
    quantised_x: Quantised | None = None  # quantised rows, read in place of x
    quantises: Quantised | None = None  # y as integers or float16, written in addition
    named_by = "weights"
    fuses: ClassVar = {"norm": "norm", "route": "route", "quantised_x": "quantised_x", "quantises": "quantise"}

    @property
    def input_uses(self) -> int:
        """The number of neighbouring choices that read the same row of x."""
        return 1 if len(self.x.shape) > 2 else self.routing.experts.shape[1]

    @property
    def halves(self) -> bool:
        """True if one weight holds gate and up."""
        return self.gated and len(self.weights) == 1

    @property
    def reads(self) -> tuple[Value, ...]:
        routing = (self.route.logits,) if self.route else (self.routing.experts,)
        scales = (self.routing.shares,) if self.scaled else ()
        x = self.quantised_x.value if self.quantised_x else self.x
        return (x, *routing, *scales, *(self.sorted.ordered if self.sorted else ()))

    @property
    def writes(self) -> tuple[Value, ...]:
        rounded = (self.quantises.value,) if self.quantises else ()
        return (self.y, *rounded, *(self.route.writes if self.route else ()))


@dataclass(frozen=True)
class ExpertSum(Op):
    """y[t] = (sum over j of shares[t, j] · (D_e h[t, j] + b_e)) + add[t] + gate[t] · shared[t], e = experts[t, j]"""

    h: Value
    down: Weight
    routing: Routing[Value]
    y: Value
    add: Value | None = None
    bias: Weight | None = None  # [E · M]
    weighted: bool = True  # whether results are multiplied by shares
    sorted: SortChoices | None = None
    shared: Value | None = None  # result of a shared expert; only together with `add`
    gate: Value | None = None  # [T, 1], factor of `shared`
    quantised_x: Quantised | None = None  # quantised rows, read in place of h
    quantises: Quantised | None = None  # y as integers or float16, written in addition
    next_gain: Weight | None = None  # gain of the next norm, applied to what it quantises
    named_by = "down"
    fuses: ClassVar = {"gate": "gate", "quantised_x": "quantised_x", "quantises": "quantise"}

    @property
    def x(self) -> Value:
        """The input of its matrices."""
        return self.h

    @property
    def reads(self) -> tuple[Value, ...]:
        read = [self.quantised_x.value if self.quantised_x else self.h, self.routing.experts]
        if self.weighted:
            read.append(self.routing.shares)
        read += [value for value in (self.add, self.shared, self.gate) if value is not None]
        return (*read, *(self.sorted.ordered if self.sorted else ()))
