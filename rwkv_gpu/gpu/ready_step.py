"""A step that is made ready before all of its inputs are known: they come from another device."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from . import native
from .plan import Part, Plan


@dataclass(frozen=True)
class Commands:
    """The command buffers of a step of a plan, with copies of its results at the end."""

    plan: Plan
    parts: Sequence[Part]  # the results
    landing: "native.Landing"  # where they are copied to
    encoded: Sequence[Callable[[], Any]]  # each gives a command buffer, maybe once another thread has finished it

    def suit(self, plan: Plan, parts: Sequence[Part]) -> bool:
        """Whether such a step has these commands."""
        return self.plan is plan and self.parts == parts


class ReadyStep:
    """A step that waits for some of its inputs only: its commands are encoded, and its other inputs are uploaded."""

    def __init__(
        self,
        counts: tuple[int, int, int],
        inputs: Mapping[str, Any],
        late: Collection[str],
        commands: Commands,
    ) -> None:
        self.commands = commands
        self._counts = counts
        self._inputs = inputs
        self._late = late
        self._filled = -1  # which fill of the plan's inputs is this step's
        self.upload({})

    def upload(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Queues what the step reads: all but late inputs, or these alone if the rest is there."""
        plan = self.commands.plan
        inputs, device = plan.step, plan.device
        if self._filled == inputs.fills:
            if self._late:  # in one piece: values that cross lie one behind the other
                at, data = inputs.fill_late({name: values[name] for name in self._late})
                native.write(device.queue, inputs.buffer.handle, at, data)
            return
        rows, segments, outputs = self._counts
        late = () if values else self._late
        inputs.fill(0, rows, {**self._inputs, **values}, segments, outputs, late=late)
        self._filled = inputs.fills
        device.write(inputs.buffer, inputs.filled(1))
