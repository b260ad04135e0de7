"""Matrix products, with all that passes fuse into them, and activation quantisation."""

import itertools
from dataclasses import dataclass

from ...kernels.gemm_config import GemmConfig
from ..graph import Op
from ..values import Quantised, RowStatistics, Value
from ..vocabulary import Activation, Cache, LayerNorm, Rms, State, Weight
from .conv import Conv1d


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
class ConvolutionPrologue:
    """A product that convolves the row it reads, and replaces the state of the convolution."""

    conv: Conv1d


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
class AdapterSums:
    """What the products of a `Gemm` add of adapters: B_i low_i each, or nothing."""

    lows: tuple[tuple[Value, ...], ...]  # of each product: none, one, or one for each of two matrices that alternate
    factors: tuple[Weight | None, ...]
    columns: Value | None  # those that each row has; none where B are further columns of W, and low of x


@dataclass(frozen=True)
class JoinedColumns:
    """A second matrix, whose columns follow those of the only one of a `Gemm`: y = W x + V z."""

    x: Value
    weight: Weight


@dataclass(frozen=True)
class Gemm(Op):
    """y_i = scale · then_i(W_i x_i + bias_i) · by + add: matrices of one format and one buffer, and x in one stack"""

    products: tuple[Product, ...]
    add: Value | None = None  # to the result of the only product
    by: Value | None = None  # what that is multiplied by before, by element; there is no bias then
    pairs: bool = False  # y = then(G x) · (U x), where the rows of G and U alternate in the only W
    scale: float = 1.0  # of the result of the only product
    config: GemmConfig | None = None
    prologue: NormPrologue | TokenShiftPrologue | ConvolutionPrologue | None = None
    quantised_x: Quantised | None = None  # what it reads in place of x
    quantises: Quantised | None = None  # what it writes beside y
    next_gain: Weight | None = None  # of the norm that what it quantises goes through next
    saves: SaveState | None = None
    emits: RowStatistics | None = None  # of y
    merges: bool = False  # with the Gemm before it, where one dispatch can hold both
    adapters: AdapterSums | None = None  # what is added to W_i x_i + bias_i
    joined: JoinedColumns | None = None  # what is added to W x of the only product
    columns_of: Value | None = None  # s [T, R]: W_i are A of adapters, y_i = s · W_i x_i are further columns of x_i

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All matrices, in the order in which they are given."""
        own = tuple(one.weight for one in self.products)
        return (*own, self.joined.weight) if self.joined else own

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns that each product sums over."""
        own = tuple(one.weight.shape[1] for one in self.products)
        return (own[0] + self.joined.weight.shape[1],) if self.joined else own

    @property
    def adds_to_sums(self) -> bool:
        """Whether what adapters give is added to sums, as a bias is."""
        return self.adapters is not None and self.adapters.columns is not None

    @property
    def statistics(self) -> RowStatistics | None:
        """What it loads of the row that it norms."""
        return self.prologue.statistics if isinstance(self.prologue, NormPrologue | TokenShiftPrologue) else None

    @property
    def reads(self) -> tuple[Value, ...]:
        read = list(self._x)
        if self.joined:
            read.append(self.joined.x)
        if self.add is not None:
            read.append(self.add)
        read += [value for value in (self.by, self.columns_of) if value is not None]
        if self.saves:
            read.append(self.saves.normed)
        if self.statistics:
            read.append(self.statistics.value)
        if self.adapters:
            read += itertools.chain(*self.adapters.lows, filter(None, [self.adapters.columns]))
        return tuple(read)

    @property
    def _x(self) -> tuple[Value, ...]:
        if isinstance(self.prologue, TokenShiftPrologue):
            return (self.prologue.x,)
        if isinstance(self.prologue, ConvolutionPrologue):
            return (self.prologue.conv.x,)
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
        if isinstance(self.prologue, ConvolutionPrologue):
            return self.prologue.conv.states_read
        return (self.prologue.state,) if isinstance(self.prologue, TokenShiftPrologue) else ()

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        if isinstance(self.prologue, ConvolutionPrologue):
            return self.prologue.conv.states_written
        return (self.saves.state,) if self.saves else ()

    @property
    def label(self) -> str:
        return " ".join(weight.name for weight in self.weights)

    @property
    def fused(self) -> tuple[str, ...]:
        prologue = {NormPrologue: "norm", TokenShiftPrologue: "token_shift", ConvolutionPrologue: "conv1d"}
        found = {
            self.config.kernel.rpartition("/")[2] if self.config else "": self.config is not None,
            prologue.get(type(self.prologue), ""): self.prologue is not None,
            "row_statistics_in": self.statistics is not None,
            "store_normed": isinstance(self.prologue, TokenShiftPrologue) and self.prologue.store is not None,
            "quantised_x": self.quantised_x is not None,
            "quantise": self.quantises is not None,
            "scaled": self.by is not None,
            "save_state": self.saves is not None,
            "row_statistics": self.emits is not None,
            "adapters": self.adapters is not None,
            "columns": (self.adapters is not None and self.adapters.columns is None) or self.columns_of is not None,
            "joined": self.joined is not None,
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
