"""Steps of one plan that go to the GPU as one submit: each submit of its own leaves a fast GPU idle for 25 to 80 µs."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import DeviceLost
from .plan import Plan, Slice
from .readback import Readback, ReadbackRing

PORTION = 0.008  # seconds of work that are handed over at a time: what is said comes in such portions

Stamps = Mapping[str, Any] | None


def most_of(look_ahead: int) -> int:
    """Steps of a submit, where so many may be under way: while the GPU is at one bundle, the next is filled in."""
    return max(1, (look_ahead + 1) // 2)


class Pace:
    """How many steps go into a submit, by when results come in, where `look_ahead` may be under way at a time."""

    def __init__(self, look_ahead: int) -> None:
        self.look_ahead = look_ahead
        self.turns = 1  # that the plan in use has
        self._step = math.inf  # seconds
        self._last = 0.0  # when results came in
        self._under_way = 0  # steps

    @property
    def most(self) -> int:
        """However short they are."""
        return min(self.turns, most_of(self.look_ahead))

    @property
    def steps(self) -> int:
        """As many as are submitted at a time."""
        return max(1, min(self.most, int(PORTION / max(self._step, 1e-9))))

    @property
    def enough(self) -> int:
        """Steps that make a bundle; fewer while the GPU has less to do than it takes to fill one in."""
        return max(1, min(self.steps, self._under_way))

    @property
    def ahead(self) -> int:
        """Steps under way that keep the GPU busy."""
        return min(self.look_ahead, max(2, 2 * self.steps - 1))

    def begin(self, steps: int) -> float:
        """So many steps are submitted; when."""
        self._under_way += steps
        return time.perf_counter()

    def arrived(self, begun: float, steps: int) -> None:
        """So many steps are done that were submitted at that time."""
        now = time.perf_counter()
        self._step = (now - max(begun, self._last)) / steps
        self._last = now
        self._under_way -= steps


class Bundle:
    """Steps that are filled in one by one, and then submitted and waited for as one."""

    def __init__(self, plan: Plan, ring: ReadbackRing, pace: Pace, layers_per_submit: int = 0) -> None:
        self.plan = plan
        self._ring = ring
        self._pace = pace
        self._layers_per_submit = layers_per_submit
        self._parts: list[Slice] = []
        self._ends = [0]  # in bytes, of what each step gives
        self._begun = 0.0
        self._readback: Readback | None = None
        self._data: bytes | None = None

    @property
    def steps(self) -> int:
        """How many there are so far; the turn of the next."""
        return len(self._ends) - 1

    @property
    def sent(self) -> bool:
        """Whether it takes no more."""
        return self._begun > 0

    def add(self, rows: int, inputs: Mapping[str, Any], segments: int, outputs: int, parts: Sequence[Slice]) -> None:
        """One more step, which is to give these parts of buffers."""
        self.plan.step.fill(self.steps, rows, inputs, segments, outputs)
        self._parts += parts
        self._ends.append(self._ends[-1] + sum(part.nbytes for part in parts))

    def send(self, stamps: Callable[[], Stamps]) -> None:
        """Submits them all, as one pass that is given stamps."""
        self._begun = self._pace.begin(self.steps)
        run = self.plan.run_turns
        self._readback = self._ring.start(
            self._parts, lambda copies: run(self.steps, self._layers_per_submit, stamps(), copies)
        )

    def take(self, turn: int) -> bytes:
        """What a step gives, once all are done. Nothing is held back while it waits."""
        if self._data is None:
            self.plan.device.settle()
            if self._readback is None:
                raise DeviceLost("the GPU was closed before a step was submitted; start again")
            self._data = self._readback.wait()
            self._pace.arrived(self._begun, self.steps)
        return self._data[self._ends[turn] : self._ends[turn + 1]]
