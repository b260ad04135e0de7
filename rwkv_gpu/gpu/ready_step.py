"""A step that is made ready before all of its inputs are known: they come from another device."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from . import native
from .plan import Part, Plan


@dataclass(frozen=True)
class Commands:
    """The command buffers of a step of a plan, with copies of its inputs at the begin and of its results at the end."""

    plan: Plan
    parts: Sequence[Part]  # the results
    landing: "native.Landing"  # where they are copied to
    upload: "native.Upload"  # where its inputs are copied from
    encoded: Callable[[], Sequence[Any]]  # gives the command buffers, maybe once another thread has finished them

    def suit(self, plan: Plan, parts: Sequence[Part]) -> bool:
        """Whether such a step has these commands."""
        return self.plan is plan and self.parts == parts


class ReadyStep:
    """A step that waits for some of its inputs only: its commands are encoded, and its other inputs are in place."""

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
        """Puts the late inputs in place."""
        for name in self._late:
            self.commands.upload.write(*self.commands.plan.step.place(name, values[name]))
