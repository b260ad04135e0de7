"""A step that is prepared before all of its inputs are known, because some come from another device."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from . import native
from .plan import Part, Plan


@dataclass(frozen=True)
class Commands:
    """The command buffers of a step: copies of its inputs, the dispatches, and copies of its results."""

    plan: Plan
    parts: Sequence[Part]  # the results
    result_buffer: "native.ResultBuffer"  # the target of the results
    upload: "native.Upload"  # the source of the inputs
    encoded: Callable[[], Sequence[Any]]  # returns the command buffers, after waiting for the thread that finishes them

    def suit(self, plan: Plan, parts: Sequence[Part]) -> bool:
        """True if these commands can be used for a step with this plan and these results."""
        return self.plan is plan and self.parts == parts


class ReadyStep:
    """A step with encoded commands that waits only for its late inputs: those known last. The others are in place."""

    def __init__(
        self,
        counts: tuple[int, int, int],
        inputs: Mapping[str, Any],
        late: Collection[str],
        commands: Commands,
    ) -> None:
        self.commands = commands
        self._late = late
        rows, segments, outputs = counts
        step = commands.plan.step
        step.fill(0, rows, inputs, segments, outputs, late=late)
        commands.upload.write(0, step.host[0])

    def complete(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Writes the late inputs."""
        for name in self._late:
            self.commands.upload.write(*self.commands.plan.step.place(name, values[name]))
