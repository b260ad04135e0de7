"""A norm, shift and mix of few rows, each of its own sequence, held back for products that do it while they read x."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..gpu.plan import Slice
from ..gpu.shader import Constant
from .held import Held
from .values import Operand, Value

MIXING_BUFFERS = 8  # that a product binds which mixes x, adds no bias and is told no moments
GRAIN = 64  # floats that a row is a multiple of: then the parts of its stack lie as the rows of `mix` do


@dataclass(frozen=True)
class Told:
    """Moments of a row by parts: of so many rows of W each, the mean and squared differences from it."""

    moments: Value  # [parts, 2]
    parts: int
    rows: int


def looking(told: Told | None) -> tuple[list[str], dict[str, Constant], dict[str, Operand]]:
    """What a kernel links, is specialised by, and binds, to norm the one row that it reads."""
    if told is None:
        return ["linear/prologue/single_row", "linear/row_statistics/merge", "linear/row_statistics/compute"], {}, {}
    return (
        ["linear/prologue/single_row", "linear/row_statistics/load"],
        {"STATISTICS": told.parts, "STATISTICS_ROWS": told.rows},
        {"statistics": told.moments},
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Mixing(Held):
    """What kernels bind to do it themselves. Each of them reads the state; whoever adds x to a product replaces it."""

    state: Slice
    x: Value
    normed: Value  # x, as the first product that mixes it writes it down for who replaces the state
    gain: Slice
    shift: Slice
    mix: Slice
    segments: Value
    rows: int
    parts: int  # that would be written, one for each row of `mix`
    eps: float
    noted: list[bool] = field(default_factory=list)  # of products that have written x down: one
    done: set[int] = field(default_factory=set)  # parts that products have mixed themselves, by their offset

    def mixing(self, told: "Told | None") -> tuple[list[str], dict[str, Constant], dict[str, Operand]]:
        """What the next kernel that mixes links, is specialised by, and binds."""
        one = self.rows == 1
        look, own, told_of = looking(told) if one else (["linear/row_statistics/merge"], {}, {})
        parts = ["linear/prologue/token_shift" if one else "linear/prologue/token_shift_rows", *look]
        constants, operands = self.constants | own, self.reading | told_of
        if self.noted:
            return [*parts, "linear/prologue/no_normed_row"], constants, operands
        self.noted.append(True)
        return [*parts, "linear/prologue/store_normed_row"], constants, operands | {"normed_row": self.normed}

    @property
    def constants(self) -> dict[str, Constant]:
        """What the part that mixes is specialised by."""
        rows: dict[str, Constant] = {"ROWS": self.rows} if self.rows > 1 else {}
        return {"D": self.x.shape[1], "EPS": self.eps} | rows

    @property
    def reading(self) -> dict[str, Operand]:
        """What a product binds that mixes."""
        vectors: dict[str, Operand] = {"gain": self.gain, "shift": self.shift, "mix": self.mix}
        return vectors | {"x": self.x, "shift_state": self.state, "segment": self.segments}

    @property
    def keeping(self) -> dict[str, Operand]:
        """What a product binds that adds x and puts it into the state."""
        return {"residual": self.x, "normed_row": self.normed, "shift_state": self.state, "segment": self.segments}

    @property
    def over(self) -> bool:
        """Whether all parts have been read, so that the state may change."""
        return len(self.done) == self.parts

    def mixed(self, xs: Sequence[Value]) -> None:
        """Remembers parts that products mix."""
        self.done.update(x.offset for x in xs)
