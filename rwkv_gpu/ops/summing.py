"""A row that many workgroups add to: another row, and sums of integers beside it, whoever comes first."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from ..gpu.plan import Slice
from .held import Held
from .mixing import Mixing
from .recording import Recording
from .values import Operand, Value

SUMMING_BUFFERS = 3  # that what reads such a row may bind beside the row: sums, the whole, a state
MOST_GROUPS = 256  # that may add to one sum, as its units have it


@dataclass(frozen=True, eq=False, kw_only=True)
class Summing(Held):
    """base + sums, for what adds up while it reads; it then writes the whole down, and base into the state."""

    base: Value
    sums: Value
    segments: Value

    @property
    def reading(self) -> dict[str, Operand]:
        """What is bound by whoever reads it."""
        return {"x": self.base, "added": self.sums}

    @property
    def writing(self) -> dict[str, Operand]:
        """What is bound by whoever reads it first."""
        return {"whole": self.writes, **({"last": self.state} if self.state else {})}

    @property
    def part(self) -> str:
        """The shader part that writes."""
        return "sum/kept" if self.state else "sum/whole"


class SummingRecorder(Recording):
    """Rows that are sums, in steps of one row."""

    def sums(self, width: int) -> Value:
        """What workgroups add to."""
        return self.zeroed((1, 2 * width), np.int32)

    def summed(self, base: Value, sums: Value) -> Value:
        """base + sums. Where all have read what base was mixed to, base is what that state becomes."""
        whole = Value(base.shape)
        state: Slice | None = None
        for held in self.every_held():
            if isinstance(held, Mixing) and held.x is base and held.over:
                self.take(held)
                state = held.state
        record = partial(self._sum_up, base, sums, whole, state)
        summing = Summing(record, whole, state, lasts=True, base=base, sums=sums, segments=self.segments)
        self.hold(summing)
        return whole

    @property
    def sums_held(self) -> bool:
        """Whether a row waits to be added up."""
        return any(isinstance(held, Summing) for held in self.every_held())

    def row_of(self, x: Value) -> tuple[tuple[str, ...], dict[str, Operand]]:
        """The parts and operands by which a dispatch reads a row, be it a sum; the first that does takes the sum."""
        held = self.held(x)
        if isinstance(held, Summing):
            self.take(held)
            self._sums_read[x] = held.reading
            return ("sum/units", "sum/read", held.part), held.reading | held.writing
        if x in self._sums_read:
            return ("sum/units", "sum/read", "sum/passed"), self._sums_read[x]
        return ("sum/plain",), {"x": x}

    def _sum_up(self, base: Value, sums: Value, whole: Value, state: Slice | None) -> None:
        width, lanes = base.shape[1], self.tuning.map_lanes
        operands: dict[str, Operand] = {"x": base, "added": sums, "whole": whole, "segment": self.segments}
        self.record(
            "",
            ("sum_up", "sum/units", "sum/read", "sum/kept" if state else "sum/whole", "lanes/plain"),
            {"D": width, "WG": lanes},
            operands | ({"last": state} if state else {}),
            groups=-(-width // (4 * lanes)),
        )
