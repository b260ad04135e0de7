"""A norm, shift and mix of few rows, each of its own sequence, held back for products that do it while they read x."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..gpu.plan import Slice
from ..gpu.shader import Constant
from .held import Held
from .values import Operand, Value

GRAIN = 64  # floats that a row is a multiple of: then the parts of its stack lie as the rows of `mix` do


@dataclass(frozen=True, eq=False, kw_only=True)
class Mixing(Held):
    """What kernels bind to do it themselves. Each of them reads the state; whoever adds x to a product replaces it."""

    state: Slice
    x: Value
    gain: Slice
    shift: Slice
    mix: Slice
    segments: Value
    rows: int
    parts: int  # that would be written, one for each row of `mix`
    eps: float
    done: set[int] = field(default_factory=set)  # parts that products have mixed themselves, by their offset

    @property
    def shader_parts(self) -> tuple[str, str]:
        """What mixes, as a kernel links it."""
        return "x/mixed" if self.rows == 1 else "x/mixed_rows", "x/moments"

    @property
    def constants(self) -> dict[str, Constant]:
        """What the part that mixes is specialised by."""
        rows: dict[str, Constant] = {"ROWS": self.rows} if self.rows > 1 else {}
        return {"D": self.x.shape[1], "EPS": self.eps} | rows

    @property
    def reading(self) -> dict[str, Operand]:
        """What a product binds that mixes."""
        vectors: dict[str, Operand] = {"gain": self.gain, "shift": self.shift, "mix": self.mix}
        return vectors | {"x": self.x, "before": self.state, "segment": self.segments}

    @property
    def keeping(self) -> dict[str, Operand]:
        """What a product binds that adds x and puts it into the state."""
        return {"residual": self.x, "before": self.state, "segment": self.segments}

    @property
    def over(self) -> bool:
        """Whether all parts have been read, so that the state may change."""
        return len(self.done) == self.parts

    def mixed(self, xs: Sequence[Value]) -> None:
        """Remembers parts that products mix."""
        self.done.update(x.offset for x in xs)
