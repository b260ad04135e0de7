"""A GPU that is none: steps take the time that a GPU would, without the CPU, and give letters.

What is left of a measurement is what the host does: the engine, threads, HTTP.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import rwkv_gpu
from rwkv_gpu.engine.device_sampling import SampledRow
from rwkv_gpu.engine.step_result import PendingStep, SamplingInputs, StepResult
from rwkv_gpu.ops.batch import Batch

STEP = 0.015  # seconds of a step that reads all weights: RWKV-7 2.9B with 64 sequences on an H200
ROW = 0.0001  # of each further row of prompts
AHEAD = 2  # steps under way that keep such a GPU busy


@dataclass(frozen=True)
class Pending:
    """A step that is done at a certain time."""

    end: float
    result: StepResult

    def wait(self) -> StepResult:
        time.sleep(max(0.0, self.end - time.perf_counter()))
        return self.result


class PretendRunner:
    """Takes steps one after the other, and has all else from a runner in numpy."""

    asynchronous = True
    ahead = AHEAD

    def __init__(self, runner: Any, letters: Sequence[int]) -> None:
        self._runner = runner
        self._letters = itertools.cycle(letters)
        self._end = 0.0  # of the last step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def submit(self, batch: Batch, sampling: SamplingInputs) -> PendingStep:  # noqa: ARG002
        """Sets a step going after those that are under way."""
        seconds = STEP + ROW * max(0, batch.rows - len(batch.segments))
        self._end = max(self._end, time.perf_counter()) + seconds
        rows = [SampledRow(next(self._letters), -1.0, 0) for _ in batch.outputs]
        return Pending(self._end, StepResult(rows, None))


def pretend(llm: rwkv_gpu.LLM) -> rwkv_gpu.LLM:
    """Has a model that was loaded for the CPU take such steps from now on."""
    letters = [id for letter in "etaoin" for id in llm.tokenize(letter)]
    engine = llm._driver._engine
    engine._runner = PretendRunner(engine._runner, letters)
    return llm
