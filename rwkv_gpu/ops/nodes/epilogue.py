"""Epilogues of matrix products: stages that process the sums."""

from dataclasses import dataclass

from ...gpu.shader import Constant
from ...kernels.parts import (
    ADAPTED_PAIRS,
    ADAPTER_SUMS,
    ADAPTERS_UP,
    ADD_RESIDUAL,
    EMIT_STATISTICS,
    PAIRS,
    QUANTISED_SUMS,
    RESIDUAL_TO_NORM,
    ROUNDING_IN_UNITS,
    SAVE_STATE,
    SAVE_STATES,
    SCALED,
    STORES_QUANTISED,
    SUMS_ROUNDED,
    SUMS_TO_NORM,
    TO_NORM,
)
from ..factors import FOUR, VEC4
from ..values import JoinedVectors, Quantised, RowStatistics, Value
from ..vocabulary import State, Weight
from .stage import AdapterSums, Context, Epilogue, Links, Stage, Staged


@dataclass(frozen=True)
class GatePairs(Epilogue):
    """y = then(G x) · (U x), where the rows of G and U alternate in the only W."""

    fusions = {"pairs of gate and up": (PAIRS,)}

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        return Links([ADAPTED_PAIRS if op.has(AddAdapters) else PAIRS])


@dataclass(frozen=True)
class AddAdapters(AdapterSums, Epilogue):
    """Adds B low to each row, and a bias."""

    columns: Value  # the range of adapter columns of each row
    fusions = {"adapters": (ADAPTERS_UP,), "adapters of pairs": (ADAPTERS_UP, ADAPTED_PAIRS)}
    labels = ("adapters",)
    bound = 3

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        found = self.outputs(to, op, FOUR)
        names = tuple(one.bias.name if one.bias else None for one in op.products)
        bias = JoinedVectors(names, tuple(one.weight.shape[0] for one in op.products))
        found.add(Links([ADAPTERS_UP], {"COLUMNS_AT": self.columns.offset // VEC4}, {"bias": bias}))
        return found


@dataclass(frozen=True)
class Scale(Epilogue):
    """Multiplies by a number."""

    number: float


@dataclass(frozen=True)
class AddResidual(Epilogue):
    """Adds a value to the result of the only product."""

    value: Value
    fusions = {"residual": (ADD_RESIDUAL,)}
    bound = 1

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        """Links a part, unless another stage's part includes the addition."""
        quantise = op.find(QuantiseResult)
        replaced = op.has(SaveState) or (quantise is not None and quantise.out.eps is not None)
        return Links([] if replaced else [ADD_RESIDUAL], {}, {"residual": self.value})


@dataclass(frozen=True)
class Multiply(Epilogue):
    """Multiplies by a value, by element, before a residual is added; cannot be combined with a bias."""

    by: Value
    fusions = {"multiply": (SCALED,)}
    labels = ("scaled",)
    bound = 1

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        return Links([SCALED], {}, {"by": self.by})


@dataclass(frozen=True)
class ScaleColumns(Epilogue):
    """For W_i that are A of adapters: y_i = s · W_i x_i, written as further columns of x_i."""

    scales: Value  # s [T, R]
    fusions = {"columns of adapters": (ADAPTER_SUMS,)}
    labels = ("columns",)
    bound = 1

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        return Links([ADAPTER_SUMS], {}, {"scales": self.scales})


@dataclass(frozen=True)
class SaveState(Epilogue):
    """Copies the normed row, which another product stored, into the state of its token shift."""

    normed: Value
    state: State
    fusions = {"save state, one row": (SAVE_STATE,), "save state, rows": (SAVE_STATES,)}
    labels = ("save_state",)
    state_outputs = ("state",)

    def buffers(self, rows: int) -> int:
        return 2 + (rows > 1)

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        found = Links([SAVE_STATE if rows == 1 else SAVE_STATES], {}, {"normed_row": self.normed})
        found.operands |= {"shift_state": to.memory.states[self.state.name], "segment": to.segments}
        return found


@dataclass(frozen=True)
class QuantiseResult(Epilogue):
    """Writes the result also as integers or float16, for the products that read it."""

    out: Quantised
    next_gain: Weight | None = None  # gain of the next norm, applied before rounding
    fusions = {
        "quantise": (QUANTISED_SUMS,),
        "round": (SUMS_ROUNDED,),
        "round for a norm": (SUMS_TO_NORM, RESIDUAL_TO_NORM),
    }
    labels = ("quantise",)
    bound = 1

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.out.value,)

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        if self.out.size:
            return Links([QUANTISED_SUMS, *STORES_QUANTISED], self.out.constants, {"quantised": self.out.value})
        parts = [SUMS_ROUNDED] if self.out.eps is None else [SUMS_TO_NORM, TO_NORM, RESIDUAL_TO_NORM]
        constants: dict[str, Constant] = {"UNIT": self.out.unit, "ROUNDED_ROWS": rows}
        gain = {"next_gain": to.vector(self.next_gain)} if self.next_gain else {}
        return Links([*parts, *ROUNDING_IN_UNITS], constants, {"rounded": self.out.value, **gain})


@dataclass(frozen=True)
class EmitStatistics(Epilogue):
    """Writes statistics of the result row, for products that norm it."""

    statistics: RowStatistics
    fusions = {"row statistics, emitted": (EMIT_STATISTICS,)}
    labels = ("row_statistics",)
    bound = 1

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.statistics.value,)

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        return Links([EMIT_STATISTICS], {}, {"statistics": self.statistics.value})


EPILOGUES: tuple[type[Stage], ...] = (  # in the order in which a product has them
    GatePairs,
    AddAdapters,
    Scale,
    Multiply,
    AddResidual,
    ScaleColumns,
    SaveState,
    QuantiseResult,
    EmitStatistics,
)
