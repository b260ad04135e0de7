"""The kinds of ops that a graph holds: those that models say, and what passes fuse into them.

Fields with a default of None at the end of an op are what passes fill in.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..gpu.shader import Constant
from ..kernels.gemm_config import GemmConfig
from .graph import Op
from .values import Operand, Quantised, RowStatistics, Value
from .vocabulary import Activation, Attention, Cache, Choosing, LayerNorm, Mixed, Rms, Routing, State, Weight


@dataclass(frozen=True)
class Embed(Op):
    """y[t] = norm(W[ids[t]])"""

    ids: Value
    weight: Weight
    y: Value
    norm: LayerNorm | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.ids,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y,)

    @property
    def label(self) -> str:
        return self.weight.name

    @property
    def fused(self) -> tuple[str, ...]:
        return ("layer_norm",) if self.norm else ()


@dataclass(frozen=True)
class Norm(Op):
    """y = norm(x), by row"""

    x: Value
    how: Rms | LayerNorm
    y: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y,)

    @property
    def label(self) -> str:
        return self.how.weight.name


@dataclass(frozen=True)
class Map(Op):
    """y = f(x), y = x + z or y = x · z, by element"""

    f: str  # an activation; of two inputs: add, mul
    inputs: tuple[Value, ...]
    y: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y,)

    @property
    def label(self) -> str:
        return self.f


@dataclass(frozen=True)
class ByRow(Op):
    """y = softmax(x) or y = argmax(x), by row"""

    f: str  # softmax, argmax
    x: Value
    y: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y,)

    @property
    def label(self) -> str:
        return self.f


@dataclass(frozen=True)
class Copy(Op):
    """y = x, where y lies in a stack that a kernel reads whole"""

    x: Value
    y: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y,)


@dataclass(frozen=True)
class Pick(Op):
    """y = the rows of x whose logits are asked for"""

    x: Value
    y: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y,)


@dataclass(frozen=True)
class NormPrologue:
    """A product that norms the x it reads."""

    how: Rms | LayerNorm
    statistics: RowStatistics | None = None  # of x, where the product that made it emits them


@dataclass(frozen=True)
class TokenShiftPrologue:
    """Products that norm x, shift it by a token and mix both rows while they read it."""

    x: Value
    norm: LayerNorm
    mix: Weight  # [n, D]
    state: State
    mixes: tuple[int, ...]  # the row of `mix` of each product
    store: Value | None = None  # where the normed x is stored, for the node that saves the state
    statistics: RowStatistics | None = None


@dataclass(frozen=True)
class SaveState:
    """A product that puts the normed row, which another one has stored, into the state of its token shift."""

    normed: Value
    state: State


@dataclass(frozen=True)
class Product:
    """One matrix of a `Gemm`."""

    x: Value
    weight: Weight
    y: Value
    then: Activation = "none"
    bias: Weight | None = None


@dataclass(frozen=True)
class Gemm(Op):
    """y_i = then_i(W_i x_i + bias_i) + add: matrices of one format and one buffer, and x in one stack"""

    products: tuple[Product, ...]
    add: Value | None = None  # to the result of the only product
    pairs: bool = False  # y = then(G x) · (U x), where the rows of G and U alternate in the only W
    config: GemmConfig | None = None
    prologue: NormPrologue | TokenShiftPrologue | None = None
    quantised_x: Quantised | None = None  # what it reads in place of x
    quantises: Quantised | None = None  # what it writes beside y
    saves: SaveState | None = None
    emits: RowStatistics | None = None  # of y
    merges: bool = False  # with the Gemm before it, where one dispatch can hold both

    @property
    def reads(self) -> tuple[Value, ...]:
        read = list(self._x)
        if self.add is not None:
            read.append(self.add)
        if self.saves:
            read.append(self.saves.normed)
        if self.prologue and self.prologue.statistics:
            read.append(self.prologue.statistics.value)
        return tuple(read)

    @property
    def _x(self) -> tuple[Value, ...]:
        if isinstance(self.prologue, TokenShiftPrologue):
            return (self.prologue.x,)
        if self.quantised_x:
            return (self.quantised_x.value,)
        return tuple(dict.fromkeys(one.x for one in self.products))

    @property
    def writes(self) -> tuple[Value, ...]:
        written = [one.y for one in self.products]
        if isinstance(self.prologue, TokenShiftPrologue) and self.prologue.store:
            written.append(self.prologue.store)
        if self.quantises:
            written.append(self.quantises.value)
        if self.emits:
            written.append(self.emits.value)
        return tuple(written)

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.prologue.state,) if isinstance(self.prologue, TokenShiftPrologue) else ()

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return (self.saves.state,) if self.saves else ()

    @property
    def label(self) -> str:
        return " ".join(one.weight.name for one in self.products)

    @property
    def fused(self) -> tuple[str, ...]:
        prologue = {NormPrologue: "norm", TokenShiftPrologue: "token_shift"}
        found = {
            self.config.kernel.rpartition("/")[2] if self.config else "": self.config is not None,
            prologue.get(type(self.prologue), ""): self.prologue is not None,
            "row_statistics_in": bool(self.prologue and self.prologue.statistics),
            "store_normed": isinstance(self.prologue, TokenShiftPrologue) and self.prologue.store is not None,
            "quantised_x": self.quantised_x is not None,
            "quantise": self.quantises is not None,
            "save_state": self.saves is not None,
            "row_statistics": self.emits is not None,
            "merge": self.merges,
        }
        return tuple(name for name, there in found.items() if there)


@dataclass(frozen=True)
class Quantise(Op):
    """Rows of x as the integers that products multiply, normed where they are to be"""

    x: Value
    widths: tuple[tuple[int, int], ...]  # of each x in it: where it starts, in floats, and how wide it is
    out: Quantised
    norm: Rms | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.out.value,)

    @property
    def fused(self) -> tuple[str, ...]:
        return ("norm",) if self.norm else ()


@dataclass(frozen=True)
class TokenShift(Op):
    """y_i[t] = xx[t] + (xx[t - 1] - xx[t]) · mix_i, with xx = layer_norm(x); the last xx is saved as the state"""

    x: Value
    norm: LayerNorm
    mix: Weight  # [n, D]
    state: State
    ys: tuple[Value, ...]  # in one stack
    quantises: Quantised | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (*self.ys, self.quantises.value) if self.quantises else self.ys

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.state,)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return (self.state,)

    @property
    def label(self) -> str:
        return self.norm.weight.name

    @property
    def fused(self) -> tuple[str, ...]:
        return ("quantise",) if self.quantises else ()


@dataclass(frozen=True)
class TimeMix(Op):
    """The recurrence of RWKV-7 by head; `lora` computes w, a and the gates on the way"""

    x: Mixed[Value]
    vectors: Weight  # [5, D]
    eps: float
    state: State
    y: Value
    lora: Gemm | None = None
    quantises: Quantised | None = None

    @property
    def gates(self) -> tuple[Value | None, ...]:
        """w, a, the gate and the gate of v."""
        return self.x.w, self.x.a, self.x.gate, self.x.v_gate

    @property
    def reads(self) -> tuple[Value, ...]:
        gates = self.lora.reads if self.lora else tuple(gate for gate in self.gates if gate is not None)
        first = () if self.x.v_first is None else (self.x.v_first,)
        return (self.x.r, self.x.k, self.x.v, *gates, *first)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.y, self.quantises.value) if self.quantises else (self.y,)

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.state,)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return (self.state,)

    @property
    def label(self) -> str:
        return self.lora.label if self.lora else ""

    @property
    def fused(self) -> tuple[str, ...]:
        return ("lora",) * (self.lora is not None) + ("quantise",) * (self.quantises is not None)


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


@dataclass(frozen=True)
class Kernel(Op):
    """A shader by name, for probes of a device: no model says it"""

    shader: tuple[str, ...]  # the kernel and its parts
    constants: Mapping[str, Constant]
    operands: Mapping[str, Operand]  # all written, as far as they are values
    groups: int

    @property
    def writes(self) -> tuple[Value, ...]:
        return tuple(operand for operand in self.operands.values() if isinstance(operand, Value))
