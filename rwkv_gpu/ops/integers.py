"""Rows of x as the integers that linear_dot and linear_few multiply, made once for all products that read them."""

from collections.abc import Mapping

from ..gpu.shader import Constant
from ..gpu.tuning import BYTES
from .dense import DenseRecorder
from .values import Integers, Operand, Value, Words
from .vocabulary import Rms

CHUNK = 32  # columns that share a scale


class IntegerRecorder(DenseRecorder):
    """Products as products of integers."""

    def integers(
        self, x: Value, widths: Mapping[int, int], form: str, norm: Rms | None, by_rows: bool = False
    ) -> Integers:
        """Of every x, by where it starts, in the order of its columns or rows; of the same ones the same integers."""
        key = x, tuple(widths.items()), form, by_rows, norm.weight.name if norm else ""
        if key not in self._integers:
            self._integers[key] = self._rounded(x, widths, form, norm, by_rows)
        return self._integers[key]

    def _rounded(
        self, x: Value, widths: Mapping[int, int], form: str, norm: Rms | None, by_rows: bool = False
    ) -> Integers:
        starts, words, end = {}, [], 0
        for start, width in widths.items():
            starts[start] = end
            words += [start, width, end, 0]
            end += width // CHUNK * (2 * BYTES[form] + 1) * self.rows
        y = Value((self.rows, 4 * end // self.rows))
        constants: dict[str, Constant] = {
            "WG": self.tuning.row_lanes,
            "BYTES": BYTES[form],
            "ROWS": self.rows,
            "BY_ROWS": int(by_rows),
        }
        operands: dict[str, Operand] = {"x": x, "y": y, "table": Words(tuple(words))}
        if norm is not None:
            operands["gain"] = self.vector(norm.weight)
            constants["EPS"] = float(norm.eps)
        parts = (f"lanes/{self.tuning.reduce}", "staged/rounded", "reach/subgroup", "x/vec4")
        self.record(
            "",
            ("integers", *parts, "norm/rms" if norm else "norm/none"),
            constants | {"XS": len(widths)},
            operands,
            groups=len(widths) * self.rows,
        )
        return Integers(y, starts)
