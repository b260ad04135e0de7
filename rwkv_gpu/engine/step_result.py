"""A step that was submitted: how its output rows are sampled, and its result, which may come later."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..ops.sampling import Flag
from ..ops.vocabulary import Choosing
from .device_sampling import SampledRow
from .sampling import Sampled, likeliest

ADJUSTED = int(Flag.BIASED | Flag.PENALISED | Flag.CUT)  # flags of rows that are not plain


@dataclass(frozen=True)
class SamplingInputs:
    """How the output rows of a step are drawn from."""

    rows: npt.NDArray[Any]  # DRAW [R]
    masks: npt.NDArray[np.uint32] | None = None  # [R, ceil(V / 32)], where a grammar is among them
    logits: bool = False  # whether the host wants them too

    @property
    def how(self) -> Choosing:
        """What the rows ask for."""
        if self.masks is not None:
            return "masked"
        return "any" if int(np.bitwise_or.reduce(self.rows["flags"])) & ADJUSTED else "plain"


@dataclass(frozen=True)
class StepResult:
    """What came of a step."""

    rows: Sequence[SampledRow]  # [R]
    logits: npt.NDArray[np.float32] | None  # [R, V], where they were asked for

    def sampled(self, row: int, logprobs: int) -> Sampled:
        """The token of a row that the device has sampled, with so many of the likeliest tokens."""
        sampled = self.rows[row].sampled()
        if not logprobs:
            return sampled
        assert self.logits is not None, "log probabilities of others need the logits"
        total = float(self.logits[row, sampled.token]) - sampled.logprob
        return sampled._replace(top=likeliest(self.logits[row], logprobs, total))


class PendingStep(Protocol):
    """A step under way."""

    def wait(self) -> StepResult:
        """What came of it, once it is done; asked for once."""


@dataclass(frozen=True)
class CompletedStep:
    """A step that was computed at once."""

    result: StepResult

    def wait(self) -> StepResult:
        return self.result
