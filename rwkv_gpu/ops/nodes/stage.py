"""Stages of a matrix product: work fused into it, on the x that it reads (prologue) or on its sums (epilogue).

A stage defines what it reads and writes, the buffers it binds, and the parts it links. A product can have a stage if
its kernel has holes for these parts; docs/fusion.md has a table. To add a stage, write it in `prologue.py` or
`epilogue.py` and list it at the end of that file.
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
    """The parts, constants and operands of a dispatch."""

    parts: list[str] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    operands: dict[str, Operand] = field(default_factory=dict)

    def add(self, other: "Links") -> None:
        """Adds all parts, constants and operands of another one."""
        self.parts += other.parts
        self.constants |= other.constants
        self.operands |= other.operands

    def __add__(self, other: "Links") -> "Links":
        parts = [*self.parts, *other.parts]
        return Links(parts, self.constants | other.constants, self.operands | other.operands)


class Context(Protocol):
    """The part of `Lowering` that stages use."""

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
    """The product that has a stage, as stages see it. Its config is fitted."""

    @property
    def products(self) -> Sequence[Product]: ...
    @property
    def widths(self) -> Sequence[int]: ...
    @property
    def config(self) -> GemmConfig | None: ...
    def has(self, *kinds: "type[Stage]") -> bool: ...
    def find(self, kind: type[Kind]) -> Kind | None: ...


class Stage:
    """Work that a product does in addition to multiplying."""

    fusions: ClassVar[Mapping[str, Parts]] = {}  # the parts of each of its forms, by name in the table of kernels
    state_inputs: ClassVar[Parts] = ()  # names of the fields whose states it reads
    state_outputs: ClassVar[Parts] = ()  # names of the fields whose states it replaces
    bound = 0  # storage buffers that it binds for any number of rows

    @property
    def labels(self) -> tuple[str, ...]:
        """Names for `rwkv-gpu plan`."""
        return ()

    @property
    def instead(self) -> Value | None:
        """The value that the product reads in place of the x of its matrices; None if it reads x."""
        return None

    @property
    def reads(self) -> tuple[Value, ...]:
        """The input values: those in its fields."""
        return values_in(vars(self).values())

    @property
    def writes(self) -> tuple[Value, ...]:
        """The values that it writes."""
        return ()

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        """The states and caches that it reads."""
        return tuple(getattr(self, name) for name in self.state_inputs)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        """The states and caches that it replaces."""
        return tuple(getattr(self, name) for name in self.state_outputs)

    def accepted_by(self, kernel: Kernel) -> bool:
        """True if a kernel has holes for at least one of its forms."""
        return any(map(kernel.accepts, self.fusions.values()))

    def buffers(self, rows: int) -> int:
        """The number of storage buffers that it binds."""
        return self.bound

    def links(self, to: Context, op: Staged, rows: int) -> Links:
        """The parts, constants and operands that it adds to the dispatch of a product."""
        return Links()


class Prologue(Stage):
    """A stage that changes x, or the columns that are summed over."""


class Epilogue(Stage):
    """A stage that processes the sums."""


@dataclass(frozen=True)
class AdapterSums(Stage):
    """Base of the stages that add B_i low_i of adapters."""

    lows: tuple[tuple[Value, ...], ...]  # per product: none, one, or two for a matrix with alternating rows
    factors: tuple[Weight | None, ...]

    @property
    def reads(self) -> tuple[Value, ...]:
        return values_in((*self.lows, *vars(self).values()))

    def outputs(self, to: Context, op: Staged, read: int) -> Links:
        """The place of each product's B and low. B is read in units of `read` bytes."""
        wanted = [one for one in self.factors if one]
        factors = together(wanted, to.target)
        assert factors is not None, "fused adapters have their factors in one binding"
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
