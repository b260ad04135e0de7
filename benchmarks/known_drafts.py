"""Drafts with a chosen acceptance rate: tokens of known answers, each right with a given probability."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import PartRunner
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.scheduler import ScheduledChunk
from rwkv_gpu.engine.sequence import TokenSequence
from rwkv_gpu.engine.speculation.draft_model import DraftModel
from rwkv_gpu.engine.speculation.head_drafts import HeadDrafts, QueuedDrafts
from rwkv_gpu.engine.speculation.proposer import Proposer
from rwkv_gpu.engine.step_result import PendingStep, StepResult
from rwkv_gpu.ops.batch import Placement


class Known(Proposer):
    """Drafts the tokens of known answers, by prompt. Each is right with a given probability."""

    def __init__(self, answers: Mapping[tuple[int, ...], list[int]], right: float) -> None:
        self.answers, self.right = answers, right
        self.random = np.random.default_rng(0)

    def draft(self, wanted: Sequence[tuple[TokenSequence, int]]) -> dict[TokenSequence, list[int]]:
        drafts = {}
        for sequence, most in wanted:
            done = len(sequence.ids) - sequence.prompt
            answer = self.answers[tuple(sequence.ids[: sequence.prompt])][done : done + most]
            right = self.random.random(len(answer)) < self.right
            drafts[sequence] = [abs(token - int(not good)) for token, good in zip(answer, right, strict=True)]
        self.steps = max(map(len, drafts.values()), default=0)
        return drafts


class KnownModel(DraftModel):
    """A draft model that runs its steps, but returns tokens of a known answer in place of its own."""

    def __init__(self, runner: GpuRunner, known: Known) -> None:
        super().__init__(runner)
        self._known = known

    def draft(self, wanted: Sequence[tuple[TokenSequence, int]]) -> dict[TokenSequence, list[int]]:
        own = super().draft(wanted)
        known = self._known.draft([(sequence, len(draft)) for sequence, draft in own.items()])
        for slot in self._slots:
            if slot.sequence in known:
                fed = [*slot.sequence.ids, *known[slot.sequence]]
                slot.fed[slot.checked :] = fed[slot.checked : len(slot.fed)]
        return known


@dataclass(frozen=True)
class KnownStep:
    """A step of a draft head that returns known tokens in place of those that it samples."""

    step: PendingStep
    tokens: Sequence[int]

    def wait(self) -> StepResult:
        """Waits for the step."""
        result = self.step.wait()
        rows = [row._replace(token=token) for row, token in zip(result.rows, self.tokens, strict=True)]
        return result._replace(rows=rows)


class KnownHead(HeadDrafts):
    """A draft head that runs its steps, but returns tokens of a known answer in place of its own, also on a device."""

    def __init__(self, runner: PartRunner, known: Known) -> None:
        super().__init__(runner)
        self._device, self._known = runner, known
        self._drafts: dict[TokenSequence, list[int]] = {}

    def submit(self, chunks: Sequence[ScheduledChunk], placements: Sequence[Placement]) -> QueuedDrafts:
        self._drafts = self._known.draft([(chunk.sequence, chunk.samples - 1) for chunk in chunks])
        return super().submit(chunks, placements)

    def step(self, going: Sequence[tuple[ScheduledChunk, Placement]], number: int) -> PendingStep:
        step, tokens = super().step(going, number), []
        for chunk, _ in going:
            draft = self._drafts[chunk.sequence]
            for one in self.drafted(chunk, number):
                tokens.append(draft[one] if one < len(draft) else 0)
                self._device.sampler_state.put(self._device.draft_place(chunk.slot, one), tokens[-1])
        return KnownStep(step, tokens)


def generate(engine: Engine, prompt: list[int], count: int) -> tuple[list[int], float]:
    """Returns the greedy answer, and the seconds per token after the first step, without compilation."""
    engine.add(Request(prompt, SamplingParams(temperature=0, max_tokens=count)))
    answer: list[int] = []
    began, skipped = 0.0, 0
    while engine.busy:
        answer += [one.token for update in engine.step() for one in update.sampled]
        if answer and not skipped:
            began, skipped = time.perf_counter() - engine.compile_seconds, len(answer)
    seconds = time.perf_counter() - engine.compile_seconds - began
    engine.prefixes.clear()
    return answer, seconds / (len(answer) - skipped)
