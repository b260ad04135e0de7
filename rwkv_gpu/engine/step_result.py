"""A step that was submitted: how its output rows are sampled, and its result, which may come later."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..ops.sampling import DRAW, Flag, draw_words
from ..ops.vocabulary import Choosing
from .device_sampling import SampledRow
from .sampling import Sampled, likeliest

ADJUSTED = int(Flag.BIASED | Flag.PENALISED | Flag.CUT)  # flags of rows that are not plain


class SamplingInputs(NamedTuple):
    """How the output rows of a step are drawn from."""

    draws: npt.NDArray[np.uint32]  # of each row its DRAW as words, [R, 16]
    how: Choosing  # what the rows ask for
    masks: npt.NDArray[np.uint32] | None = None  # [R, ceil(V / 32)], where a grammar is among them
    logits: bool = False  # whether the host wants them too

    @classmethod
    def of(cls, rows: npt.NDArray[Any], masks: npt.NDArray[np.uint32] | None = None) -> "SamplingInputs":
        """For rows of DRAW, [R]"""
        adjusted = is_adjusted(int(np.bitwise_or.reduce(rows["flags"])))
        return cls(draw_words(rows), choosing(adjusted=adjusted, masked=masks is not None), masks)

    @property
    def rows(self) -> npt.NDArray[Any]:
        """The draws as records, DRAW [R]"""
        return self.draws.view(DRAW)[:, 0]


def is_adjusted(flags: int) -> bool:
    """Whether rows with these flags are not drawn from their logits as they are."""
    return bool(flags & ADJUSTED)


def choosing(*, adjusted: bool, masked: bool) -> Choosing:
    """How the tokens of a step are chosen, by what is done to the logits of its rows."""
    return "masked" if masked else "any" if adjusted else "plain"


class StepResult(NamedTuple):
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
