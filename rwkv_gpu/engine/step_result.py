"""A step that was submitted: how its output rows are sampled, and its result, which may come later."""

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import BadNumbers
from ..ops.sampling import DRAW, NO_TOKEN, Flag, Reason, draw_words
from ..ops.vocabulary import Choosing
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


_CHOSEN = struct.Struct("=IfI4x")  # token, log probability, reason


class SampledRow(NamedTuple):
    """The result of the sampling op for a row."""

    token: int
    logprob: float
    reason: int  # of `Reason`, where there is no token

    @classmethod
    def rows(cls, data: bytes, count: int) -> "list[SampledRow]":
        """Of so many rows at the start of what the op writes: uint32 [R, 4]."""
        return [*map(cls._make, _CHOSEN.iter_unpack(data[: count * _CHOSEN.size]))]

    def sampled(self) -> Sampled:
        """The token; raises BadNumbers where none could be chosen."""
        if self.token != NO_TOKEN:
            return Sampled(self.token, self.logprob, ())
        assert self.reason != Reason.SKIPPED, "nothing was asked of this row"
        if self.reason == Reason.BAD_NUMBERS:
            raise BadNumbers(
                "logits are NaN or infinite; the model file may be damaged or the device at fault: try --device cpu, "
                "or rwkv-gpu doctor"
            )
        raise BadNumbers("no token is possible: every logit is -inf, or the grammar allows none; ban fewer tokens")


class StepResult(NamedTuple):
    """What came of a step."""

    rows: Sequence[SampledRow]  # [R]
    logits: npt.NDArray[np.float32] | None  # [R, V], where they were asked for

    def sampled(self, rows: range, logprobs: int) -> Iterator[Sampled]:
        """The tokens of rows that the device has sampled, with so many of the likeliest tokens."""
        chosen = map(SampledRow.sampled, self.rows[rows.start : rows.stop])
        return map(self._with_likeliest, chosen, rows, itertools.repeat(logprobs)) if logprobs else chosen

    def _with_likeliest(self, sampled: Sampled, row: int, logprobs: int) -> Sampled:
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
