"""What a stage of a matrix product is: work that a product does on the x that it reads, or on its sums.

A stage says what it reads and writes, which buffers it binds, and what it links. A product can have it where its kernel
has holes for the parts: docs/fusion.md has the table. To add one is to write it in `prologue.py` or `epilogue.py`, and
to list it at the end of that file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar

from ...gpu.plan import Slice
from ...gpu.shader import Constant, Struct
from ...kernels.gemm_config import GemmConfig
from ...kernels.kernel import Kernel
from ...kernels.parts import ADAPTER_OUTPUTS
from ..factors import VEC4, together
from ..graph import values_in
from ..memory import Memory
from ..target import Target
from ..values import Operand, Value
from ..vocabulary import Activation, Cache, LayerNorm, Rms, State, Weight

Parts = tuple[str, ...]


@dataclass(frozen=True)
class Product:
    """One matrix of a `Gemm`."""

    x: Value
    weight: Weight
    y: Value
    then: Activation = "none"
    bias: Weight | None = None


@dataclass
class Links:
    """What a dispatch links, is specialised by, and binds."""

    parts: list[str] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    operands: dict[str, Operand] = field(default_factory=dict)

    def add(self, other: "Links") -> None:
        """Takes over all of it."""
        self.parts += other.parts
        self.constants |= other.constants
        self.operands |= other.operands


class Context(Protocol):
    """What stages know of lowering."""

    @property
    def target(self) -> Target: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def segments(self) -> Value: ...
    def vector(self, weight: Weight) -> Slice: ...
    def gain(self, norm: Rms | LayerNorm) -> Slice: ...


Kind = TypeVar("Kind", bound="Stage")


class Staged(Protocol):
    """What stages know of the product that has them. Its config has been fitted."""

    @property
    def products(self) -> Sequence[Product]: ...
    @property
    def widths(self) -> Sequence[int]: ...
    @property
    def config(self) -> GemmConfig | None: ...
    def has(self, *kinds: "type[Stage]") -> bool: ...
    def find(self, kind: type[Kind]) -> Kind | None: ...


class Stage:
    """Work that a product does beside multiplying."""

    fusions: ClassVar[Mapping[str, Parts]] = {}  # what the table of kernels calls it: the parts that fill their holes

    bound = 0  # storage buffers that it binds, whatever the rows are

    @property
    def labels(self) -> tuple[str, ...]:
        """What `rwkv-gpu plan` shows of it."""
        return ()

    @property
    def instead(self) -> Value | None:
        """What the product reads in place of the x of its matrices."""
        return None

    @property
    def reads(self) -> tuple[Value, ...]:
        """The values that it needs: those in its fields."""
        return values_in(vars(self).values())

    @property
    def writes(self) -> tuple[Value, ...]:
        """The values that it makes."""
        return ()

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        """What it reads of what sequences carry from step to step."""
        return ()

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        """What it replaces of that."""
        return ()

    def accepted_by(self, kernel: Kernel) -> bool:
        """Whether a kernel has holes for one of its forms."""
        return any(map(kernel.accepts, self.fusions.values()))

    def buffers(self, rows: int) -> int:
        """Storage buffers that it binds."""
        return self.bound

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        """What the dispatch of a product links for it."""
        return Links()


class Prologue(Stage):
    """What is done to x, or to the columns that are summed over."""


class Epilogue(Stage):
    """What becomes of sums."""


@dataclass(frozen=True)
class AdapterSums(Stage):
    """B_i low_i of adapters, or nothing."""

    lows: tuple[tuple[Value, ...], ...]  # of each product: none, one, or one for each of two matrices that alternate
    factors: tuple[Weight | None, ...]

    @property
    def reads(self) -> tuple[Value, ...]:
        return values_in((*self.lows, *vars(self).values()))

    def outputs(self, to: Context, op: Staged, read: int) -> Links:
        """Where each product finds its B, of which so many bytes are read at a time, and its low."""
        wanted = [one for one in self.factors if one]
        factors = together(wanted, to.target)
        assert factors is not None, "only what lies together is fused"
        starts, outputs, first = iter(factors.starts), [], 0
        for product, lows in zip(op.products, self.lows, strict=True):
            at = [low.offset // VEC4 for low in lows]
            own = (1, next(starts) // read, at[0], at[-1]) if at else (0, 0, 0, 0)
            outputs.append(Struct("AdapterOutput", (first, *own)))
            first += product.weight.shape[0]
        constants: dict[str, Constant] = {
            "COLUMN_FOURS": wanted[0].shape[1] // 4,
            "B_STRIDE": factors.stride // read,
            "ADAPTED": len(outputs),
            "OUTPUTS": tuple(outputs),
        }
        low = next(low for lows in self.lows for low in lows)
        return Links([ADAPTER_OUTPUTS], constants, {"b": factors.slice, "low": low.root})
