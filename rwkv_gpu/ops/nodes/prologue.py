"""Prologues of matrix products: stages that change x, or the columns that are summed over."""

from dataclasses import dataclass

from ...gpu.shader import Constant
from ...kernels.matrix_tiles import fragments_of
from ...kernels.parts import (
    ADAPTER_COLUMNS,
    COMPUTE_STATISTICS,
    CONVOLUTION,
    HALVES,
    JOINED,
    JOINED_ROWS,
    LAYER_NORM,
    LOAD_STATISTICS,
    MERGE_STATISTICS,
    PLAIN_STATISTICS,
    RMS_NORM,
    SINGLE_ROW,
    STORE_NORMED_ROW,
    TILE_OF_SUBGROUP,
    TILE_OF_WORKGROUP,
    TOKEN_SHIFT,
    TOKEN_SHIFT_ROWS,
    UNIT_OF_ALL,
    UNIT_OF_NORM,
    UNIT_OF_ROW,
)
from ..factors import VEC4
from ..values import Operand, Quantised, RowStatistics, Value
from ..vocabulary import Cache, LayerNorm, Rms, State, Weight
from .conv import Conv1d
from .epilogue import GatePairs
from .stage import AdapterSums, Context, Links, Prologue, Stage, Staged

LOW_SCALE = 16.0  # low is divided by this to fit float16, as its sums are much larger than x; B is multiplied by it


@dataclass(frozen=True)
class NormRows(Prologue):
    """Norms the x that it reads."""

    how: Rms | LayerNorm
    fusions = {"RMS norm": (RMS_NORM,), "layer norm": (LAYER_NORM, COMPUTE_STATISTICS)}
    labels = ("norm",)

    def buffers(self, rows: int) -> int:
        return 1 if isinstance(self.how, Rms) else 2

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        found = Links([RMS_NORM], {"EPS": float(self.how.eps)}, {"gain": to.gain(self.how)})
        if isinstance(self.how, LayerNorm):
            assert self.how.bias is not None, "a norm without one is a node of its own"
            found.parts = [LAYER_NORM, *_statistics(op)]
            found.constants["D"] = op.widths[0]
            found.operands["shift"] = to.vector(self.how.bias)
        return found


@dataclass(frozen=True)
class ShiftTokens(Prologue):
    """Norms x and mixes each row with the row of the token before, while reading x."""

    x: Value
    norm: LayerNorm
    mix: Weight  # [n, D]
    state: State
    mixes: tuple[int, ...]  # the row of `mix` of each product
    store: Value | None = None  # where the normed x is stored, for the product that saves the state
    fusions = {
        "token shift, one row": (TOKEN_SHIFT, COMPUTE_STATISTICS, STORE_NORMED_ROW),
        "token shift, rows": (TOKEN_SHIFT_ROWS, STORE_NORMED_ROW),
    }
    state_inputs = ("state",)

    @property
    def instead(self) -> Value:
        return self.x

    @property
    def reads(self) -> tuple[Value, ...]:
        return ()

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.store,) if self.store else ()

    @property
    def labels(self) -> tuple[str, ...]:
        return ("token_shift", "store_normed") if self.store else ("token_shift",)

    def buffers(self, rows: int) -> int:
        return 4 + (self.store is not None) + (rows > 1)

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        assert self.norm.bias is not None
        own = [TOKEN_SHIFT, *_statistics(op)] if rows == 1 else [TOKEN_SHIFT_ROWS, MERGE_STATISTICS]
        constants: dict[str, Constant] = {"D": self.x.shape[1], "EPS": float(self.norm.eps)}
        operands: dict[str, Operand] = {
            "gain": to.gain(self.norm),
            "shift": to.vector(self.norm.bias),
            "mix": to.vector(self.mix),
            "shift_state": to.memory.states[self.state.name],
            "segment": to.segments,
        }
        found = Links(own, constants | ({"ROWS": rows} if rows > 1 else {}), operands)
        if self.store is not None:
            found.add(Links([STORE_NORMED_ROW], {}, {"normed_row": self.store}))
        return found


@dataclass(frozen=True)
class Convolve(Prologue):
    """Convolves the row while reading it, and replaces the state of the convolution."""

    conv: Conv1d
    fusions = {"convolution": (CONVOLUTION,)}
    labels = ("conv1d",)
    bound = 2

    @property
    def instead(self) -> Value:
        return self.conv.x

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return self.conv.states_read

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return self.conv.states_written

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        assert self.conv.weight is not None, "one that shifts rows is a node of its own"
        past, channels = self.conv.state.shape
        operands: dict[str, Operand] = {
            "taps": to.vector(self.conv.weight),
            "past": to.memory.states[self.conv.state.name],
            "segment": to.segments,
        }
        return Links([CONVOLUTION], {"C": channels, "PAST": past}, operands)


@dataclass(frozen=True)
class LoadStatistics(Prologue):
    """Loads the mean and deviation for a norm from the statistics that the producer of the row emitted."""

    statistics: RowStatistics
    fusions = {"row statistics, loaded": (LOAD_STATISTICS,)}
    labels = ("row_statistics_in",)
    bound = 1

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.statistics.value,)

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        constants = {"STATISTICS": self.statistics.parts, "STATISTICS_ROWS": self.statistics.columns}
        return Links([LOAD_STATISTICS], {**constants}, {"statistics": self.statistics.value})


def _statistics(op: Staged) -> list[str]:
    """The parts that compute the mean and deviation of the row of a one-row step, unless a stage loads them."""
    return [SINGLE_ROW] if op.has(LoadStatistics) else [SINGLE_ROW, MERGE_STATISTICS, COMPUTE_STATISTICS]


@dataclass(frozen=True)
class ReadQuantised(Prologue):
    """Reads rows that are already quantised to integers or float16."""

    rows: Quantised
    fusions = {"rows in a unit": (UNIT_OF_ALL,), "rows to norm in a unit": (UNIT_OF_NORM,)}
    labels = ("quantised_x",)

    @property
    def instead(self) -> Value:
        return self.rows.value

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        x, config, found = self.rows, op.config, Links()
        assert config is not None
        if config.entry.x_order == "fragments":
            found.constants["FRAGMENTS"] = fragments_of(rows, config.fragment)
        if config.takes(UNIT_OF_ROW):
            found.parts = [UNIT_OF_ROW if not x.unit else UNIT_OF_ALL if x.eps is None else UNIT_OF_NORM]
            found.constants |= {"X_UNIT": x.unit} if x.unit else {}
            found.constants |= {"X_EPS": float(x.eps)} if x.eps is not None else {}
        return found


@dataclass(frozen=True)
class JoinColumns(Prologue):
    """Appends the columns of a second matrix V to those of the only W: y = W x + V z."""

    z: Value
    weight: Weight
    fusions = {"joined columns": (JOINED, JOINED_ROWS)}
    labels = ("joined",)
    bound = 1

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        own = self.weight.shape[1]
        seam: dict[str, Constant] = {"SEAM": (op.widths[0] - own) // 32, "BEHIND_SEAM": own // 32}
        return Links([JOINED, JOINED_ROWS, PLAIN_STATISTICS], seam, {"z": self.z})


@dataclass(frozen=True)
class AdapterColumns(AdapterSums, Prologue):
    """Appends B of adapters to the columns of W, and low to the columns of x."""

    fusions = {"adapters as columns": (ADAPTER_COLUMNS,)}
    labels = ("adapters", "columns")
    bound = 2

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        found = self.outputs(to, op, VEC4)
        assert op.config is not None
        of_subgroups = op.config.entry.x_order == "fragments"
        found.parts += [ADAPTER_COLUMNS, *((TILE_OF_SUBGROUP,) if of_subgroups else (TILE_OF_WORKGROUP, HALVES))]
        found.constants |= {"LOW_SCALE": LOW_SCALE, "ALTERNATE": 1 + op.has(GatePairs)}
        return found


PROLOGUES: tuple[type[Stage], ...] = (  # in the order in which a product has them
    NormRows,
    ShiftTokens,
    Convolve,
    LoadStatistics,
    ReadQuantised,
    AdapterColumns,
    JoinColumns,
)
