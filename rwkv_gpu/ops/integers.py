"""Rows of x as the integers that some products multiply: made once, by a dispatch or by what writes x."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ..gpu.plan import Slice
from ..gpu.shader import Constant
from ..kernels.tuning import BYTES
from .dense import DenseRecorder
from .held import Held
from .values import Integers, Operand, Value, Words
from .vocabulary import Rms

CHUNK = 32  # columns that share a scale
ROUNDING_BUFFERS = 9  # that is bound by what writes integers beside floats
LAYING = "lib/store_quantised", "lib/quantise", "lib/sum/subgroup"  # what a kernel links that writes integers


@dataclass(frozen=True, eq=False, kw_only=True)
class Roundable(Held):
    """What can be written as integers beside floats, if that is what its reader wants."""

    widths: Mapping[int, int]  # of each x in it, by where it starts, in floats
    round: Callable[[Integers], None]  # records it so
    size: int = 0  # of an integer, in bytes, where only one will do


class IntegerRecorder(DenseRecorder):
    """Products as products of integers."""

    def hold_or_round(
        self, record: Callable[[Integers | None], None], y: Value, state: Slice, widths: Mapping[int, int]
    ) -> None:
        """Holds back what writes y until its reader is known, where that may want integers."""
        can = self.device.capabilities
        if (
            self.rows > 1
            and can.max_storage_buffers >= ROUNDING_BUFFERS
            and all(w % CHUNK == 0 for w in widths.values())
        ):
            self.hold(Roundable(partial(record, None), y, state, widths=widths, round=record))
        else:
            record(None)

    def integers(
        self, x: Value, widths: Mapping[int, int], form: str, norm: Rms | None, by_rows: bool = False
    ) -> Integers:
        """Of every x, by where it starts, in the order of its columns or rows; of the same ones the same integers."""
        key = x, tuple(widths.items()), form, by_rows, norm.weight.name if norm else ""
        if key not in self._integers:
            found = self._laid(widths, form, by_rows)
            if not (norm is None and self._written(x, widths, found)):
                self._round(x, widths, norm, found)
            self._integers[key] = found
        return self._integers[key]

    def _laid(self, widths: Mapping[int, int], form: str, by_rows: bool) -> Integers:
        """Where they will lie."""
        starts, end = {}, 0
        for start, width in widths.items():
            starts[start] = end
            end += width // CHUNK * (2 * BYTES[form] + 1) * self.rows
        return Integers(Value((self.rows, 4 * end // self.rows)), starts, BYTES[form], by_rows)

    def _written(self, x: Value, widths: Mapping[int, int], found: Integers) -> bool:
        """Whether what makes x has been told to write integers."""
        held = self.held(x)
        first = x.offset // 4
        moved = {first + start: width for start, width in widths.items()}
        if not isinstance(held, Roundable) or held.size not in (0, found.size):
            return False
        if not moved.items() <= held.widths.items():
            return False
        self.take(held)
        held.round(replace(found, starts={first + start: at for start, at in found.starts.items()}))
        return True

    def _round(self, x: Value, widths: Mapping[int, int], norm: Rms | None, found: Integers) -> None:
        words = [word for start, width in widths.items() for word in (start, width, found.starts[start], 0)]
        constants: dict[str, Constant] = {"WG": self.tuning.row_lanes, "XS": len(widths)}
        operands: dict[str, Operand] = {"x": x, "quantised": found.value, "table": Words(tuple(words))}
        if norm is not None:
            operands["gain"] = self.vector(norm.weight)
            constants["EPS"] = float(norm.eps)
        parts = (f"lib/lanes/{self.tuning.reduce}", *LAYING, "lib/rows/vec4")
        self.record(
            "",
            ("linear/quantise_rows", *parts, "linear/prologue/rms_norm" if norm else "linear/prologue/no_norm"),
            constants | found.constants,
            operands,
            groups=len(widths) * self.rows,
        )
