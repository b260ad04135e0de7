"""Tensors that a conversion will write: their sources, and the operations on these."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, printable
from ..gguf.header import Value
from ..gguf.stored import WIDTHS, Floats, Stored

Shape = tuple[int, ...]
Indices = npt.NDArray[np.int64]
CUT = 1 << 24  # numbers read at a time, if rows keep their order

RESHAPES: dict[str, Callable[[Floats], Floats]] = {
    "": lambda x: x,
    "flat": lambda x: x.reshape(-1),
    "turned": lambda x: x.swapaxes(-1, -2),
    "rest": lambda x: 1 - x.reshape(-1),
}


@dataclass(frozen=True)
class Change:
    """A change to a matrix during conversion: a new order of its rows and columns, and a function of each number."""

    rows: Indices | None = None
    columns: Indices | None = None
    compute: Callable[[Floats], Floats] | None = None
    shape: Callable[[Shape], Shape] | None = None

    @property
    def keeps_order(self) -> bool:
        """True if rows can be changed some at a time."""
        return self.rows is None and self.columns is None

    def __call__(self, x: Floats) -> Floats:
        """The changed numbers, in the shape of the source."""
        x = x if self.rows is None else x[self.rows]
        x = x if self.columns is None else x[..., self.columns]
        return x if self.compute is None else self.compute(x)


AS_STORED = Change()


@dataclass(frozen=True)
class Planned:
    """A tensor with its name and shape in the file, and its sources. Several sources are stacked."""

    name: str
    shape: Shape
    sources: tuple[Stored, ...] = ()
    reshape: str = ""  # a key of RESHAPES, for each source
    divisor: float = 1
    change: Change = AS_STORED
    constant: Floats | None = None  # the numbers, if there are no sources

    def parts(self) -> Iterator[Floats]:
        """The numbers in the order of the file, some rows at a time."""
        width = self.shape[-1]
        if self.constant is not None:
            yield self.constant.reshape(-1, width)
        for source in self.sources:
            whole = self.reshape or not self.change.keeps_order or source.type not in WIDTHS
            if whole or source.shape[-1:] != (width,):
                yield self._changed(source).reshape(-1, width)
                continue
            rows, step = source.count // width, max(1, CUT // width)
            for start in range(0, rows, step):
                yield self._changed(source.rows(start, min(start + step, rows))).reshape(-1, width)

    def _changed(self, source: Stored) -> Floats:
        with np.errstate(over="ignore"):  # reported below
            values = self.change(RESHAPES[self.reshape](source.read()))
        if self.change.compute is not None and source.type == "F16":  # llama.cpp computes in the type of the checkpoint
            values = values.astype(np.float16).astype(np.float32)
        values = self.checked(source, values)
        return values if self.divisor == 1 else values / np.float32(self.divisor)

    def checked(self, source: Stored, values: Floats) -> Floats:
        """The same numbers; raises BadFile if some are infinite or NaN."""
        if not np.isfinite(values).all():
            path = printable(str(source.path))
            raise BadFile(
                f"{path}: the source of {self.name!r} has numbers that are infinite or NaN; download it again"
            )
        return values


@dataclass(frozen=True)
class Plan:
    """A whole file: its architecture, metadata, and tensors in order."""

    architecture: str
    metadata: dict[str, Value]
    tensors: Sequence[Planned]
    adapter: bool = False  # factors for another model, which no loader can check alone
