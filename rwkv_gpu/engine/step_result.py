"""A submitted step: how its output rows are sampled, and its result, which may come later."""

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
from .sampling import Sampled, most_likely

ADJUSTED = int(Flag.BIASED | Flag.PENALISED | Flag.CUT)  # flags of rows whose logits are adjusted


class SamplingInputs(NamedTuple):
    """How the output rows of a step are sampled."""

    draws: npt.NDArray[np.uint32]  # one DRAW per row, as words, [R, 16]
    how: Choosing  # kind of sampling that the rows need
    masks: npt.NDArray[np.uint32] | None = None  # [R, ceil(V / 32)], if any row has a grammar
    logits: bool = False  # whether the host needs the logits too

    @classmethod
    def of(cls, rows: npt.NDArray[Any], masks: npt.NDArray[np.uint32] | None = None) -> "SamplingInputs":
        """From rows of DRAW, [R]"""
        adjusted = is_adjusted(int(np.bitwise_or.reduce(rows["flags"])))
        return cls(draw_words(rows), choosing(adjusted=adjusted, masked=masks is not None), masks)

    @property
    def rows(self) -> npt.NDArray[Any]:
        """The draws as DRAW records, [R]"""
        return self.draws.view(DRAW)[:, 0]


def is_adjusted(flags: int) -> bool:
    """True if rows with these flags are sampled from adjusted logits."""
    return bool(flags & ADJUSTED)


def choosing(*, adjusted: bool, masked: bool) -> Choosing:
    """The kind of sampling that a step needs."""
    return "masked" if masked else "any" if adjusted else "plain"


_CHOSEN = struct.Struct("=IfI4x")  # token, log probability, reason


class SampledRow(NamedTuple):
    """The sampling op's result for a row."""

    token: int
    logprob: float
    reason: int  # a `Reason`, if there is no token

    @classmethod
    def rows(cls, data: bytes, count: int) -> "list[SampledRow]":
        """Reads the first `count` rows of what the op writes: uint32 [R, 4]."""
        return [*map(cls._make, _CHOSEN.iter_unpack(data[: count * _CHOSEN.size]))]

    def sampled(self) -> Sampled:
        """Returns the token; raises BadNumbers if none could be chosen."""
        if self.token != NO_TOKEN:
            return Sampled(self.token, self.logprob, ())
        assert self.reason != Reason.SKIPPED, "no token was requested for this row"
        if self.reason == Reason.BAD_NUMBERS:
            raise BadNumbers.of("logits")
        raise BadNumbers("no token is possible: every logit is -inf, or the grammar allows none; ban fewer tokens")


class StepResult(NamedTuple):
    """The result of a step."""

    rows: Sequence[SampledRow]  # [R]
    logits: npt.NDArray[np.float32] | None  # [R, V], if requested

    def sampled(self, rows: range, logprobs: int) -> Iterator[Sampled]:
        """The tokens that the device has sampled for these rows, each with its `logprobs` most likely alternatives."""
        chosen = map(SampledRow.sampled, self.rows[rows.start : rows.stop])
        return map(self._with_most_likely, chosen, rows, itertools.repeat(logprobs)) if logprobs else chosen

    def _with_most_likely(self, sampled: Sampled, row: int, logprobs: int) -> Sampled:
        assert self.logits is not None, "log probabilities of alternatives need the logits"
        total = float(self.logits[row, sampled.token]) - sampled.logprob
        return sampled._replace(top=most_likely(self.logits[row], logprobs, total))


class PendingStep(Protocol):
    """A submitted step."""

    def wait(self) -> StepResult:
        """Waits and returns the result. Call it once."""


@dataclass(frozen=True)
class CompletedStep:
    """The result of a step that was computed synchronously."""

    result: StepResult

    def wait(self) -> StepResult:
        return self.result
