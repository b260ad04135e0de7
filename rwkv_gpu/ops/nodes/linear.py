"""Matrix products with the stages that passes fuse into them, and activation quantisation."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from ...gpu.shader import Constant
from ...kernels.gemm_config import GemmConfig
from ..graph import Op
from ..values import Quantised, Value
from ..vocabulary import NUMBER, Cache, Rms, State, Weight
from .epilogue import EPILOGUES, AddAdapters, AddResidual, GatePairs, Scale
from .prologue import PROLOGUES, JoinColumns, ReadQuantised
from .stage import Epilogue, Kind, Product, Prologue, Stage

STAGES = *PROLOGUES, *EPILOGUES


@dataclass(frozen=True)
class Gemm(Op):
    """y_i = then_i(W_i x_i + bias_i); the matrices have one format and one buffer, and all x_i are in one stack"""

    products: tuple[Product, ...]
    prologue: tuple[Prologue, ...] = ()
    epilogue: tuple[Epilogue, ...] = ()
    config: GemmConfig | None = None
    merges: bool = False  # whether it shares the dispatch of the Gemm before it, if one dispatch can hold both
    named_by = "weights"

    @classmethod
    def of(cls, *products: Product, add: Value | None = None, scale: float = 1.0, pairs: bool = False) -> "Gemm":
        """y_i = scale · then_i(W_i x_i + bias_i) + add, or with `pairs` y = then(G x) · (U x)."""
        stages: list[Stage] = [GatePairs()] if pairs else []
        stages += [Scale(scale)] if scale != 1.0 else []
        stages += [AddResidual(add)] if add is not None else []
        return cls(products).plus(*stages)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, in execution order."""
        return (*self.prologue, *self.epilogue)

    def find(self, kind: type[Kind]) -> Kind | None:
        """The stage of the given type; None if the product has none."""
        return next((stage for stage in self.stages if isinstance(stage, kind)), None)

    def has(self, *kinds: type[Stage]) -> bool:
        """True if it has a stage of any of these kinds."""
        return any(isinstance(stage, kinds) for stage in self.stages)

    def only(self, *kinds: type[Stage]) -> bool:
        """True if all its stages are of these kinds."""
        return all(isinstance(stage, kinds) for stage in self.stages)

    def plus(self, *stages: Stage) -> "Gemm":
        """The same product with further stages, which replace stages of the same kind."""
        own = {type(stage): stage for stage in (*self.stages, *stages)}
        return self._of(own[kind] for kind in STAGES if kind in own)

    def minus(self, *kinds: type[Stage]) -> "Gemm":
        """The same product without stages of these kinds."""
        return self._of(stage for stage in self.stages if not isinstance(stage, kinds))

    def reading(self, x: Quantised) -> "Gemm":
        """The same product, reading rows that are already quantised and normed."""
        return replace(self, prologue=()).plus(ReadQuantised(x))

    def _of(self, stages: Iterable[Stage]) -> "Gemm":
        every = tuple(stages)
        prologue = tuple(one for one in every if isinstance(one, Prologue))
        return replace(self, prologue=prologue, epilogue=tuple(one for one in every if isinstance(one, Epilogue)))

    @property
    def add(self) -> Value | None:
        """The residual that it adds, if any."""
        added = self.find(AddResidual)
        return added.value if added else None

    @property
    def constants(self) -> dict[str, Constant]:
        """Constants of its epilogue. The activation of gated pairs is a constant, which saves registers."""
        scale = self.find(Scale)
        if self.has(GatePairs):
            return {"THEN": NUMBER[self.products[0].then]}
        return {"SCALE": float(scale.number) if scale else 1.0}

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All matrices, in order."""
        joined = self.find(JoinColumns)
        return (*(one.weight for one in self.products), *((joined.weight,) if joined else ()))

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of columns that each product sums over."""
        joined, own = self.find(JoinColumns), tuple(one.weight.shape[1] for one in self.products)
        return (own[0] + joined.weight.shape[1],) if joined else own

    @property
    def reads(self) -> tuple[Value, ...]:
        instead = [stage.instead for stage in self.prologue if stage.instead is not None]
        x = instead or list(dict.fromkeys(one.x for one in self.products))
        return (*x, *(value for stage in self.stages for value in stage.reads))

    @property
    def writes(self) -> tuple[Value, ...]:
        return (*(one.y for one in self.products), *(value for stage in self.stages for value in stage.writes))

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return tuple(state for stage in self.stages for state in stage.states_read)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return tuple(state for stage in self.stages for state in stage.states_written)

    @property
    def fused(self) -> tuple[str, ...]:
        kernel = (self.config.kernel.rpartition("/")[2],) if self.config else ()
        labels = (label for stage in self.stages for label in stage.labels)
        return (*kernel, *labels, *(("merge",) if self.merges else ()))

    def buffers(self, rows: int) -> int:
        """The number of storage buffers that its dispatch binds: W, x, y, biases, and those of its stages."""
        biases = not self.has(AddAdapters) and any(one.bias for one in self.products)
        return 3 + biases + sum(stage.buffers(rows) for stage in self.stages)


@dataclass(frozen=True)
class Quantise(Op):
    """Converts rows of x to the integers or float16 that products multiply, after an optional norm"""

    x: Value
    widths: tuple[tuple[int, int], ...]  # start, in floats, and width of each x in it
    out: Quantised
    norm: Rms | None = None
    fuses: ClassVar = {"norm": "norm"}

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.out.value,)
