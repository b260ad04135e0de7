"""Drafts whose acceptance is chosen: tokens of a known answer, each of them right with a probability."""

import time
from collections.abc import Sequence

import numpy as np

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.sequence import TokenSequence
from rwkv_gpu.engine.speculation.draft_model import DraftModel


class Known:
    """Drafts the tokens that will be sampled; each is right with a probability."""

    steps, read, compile_seconds = 0, False, 0.0

    def __init__(self, answers: dict[tuple[int, ...], list[int]], right: float) -> None:
        self.answers, self.right = answers, right
        self.random = np.random.default_rng(0)

    def draft(self, wanted: Sequence[tuple[TokenSequence, int]]) -> dict[TokenSequence, list[int]]:
        drafts = {}
        for sequence, most in wanted:
            done = len(sequence.ids) - sequence.prompt
            answer = self.answers[tuple(sequence.ids[: sequence.prompt])][done : done + most]
            lucky = self.random.random(len(answer)) < self.right
            drafts[sequence] = [token ^ int(not good) for token, good in zip(answer, lucky, strict=True)]
        self.steps = max(map(len, drafts.values()), default=0)
        return drafts

    def release(self, sequence: TokenSequence) -> None: ...
    def close(self) -> None: ...


class KnownModel(DraftModel):
    """A draft model that takes its steps; tokens of a known answer stand in for those that it samples."""

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


def generate(engine: Engine, prompts: Sequence[list[int]], count: int) -> tuple[dict[int, list[int]], float]:
    """The answers by number, and seconds a token from when all have begun."""
    answers: dict[int, list[int]] = {
        engine.add(Request(ids, SamplingParams(temperature=0, max_tokens=count))): [] for ids in prompts
    }
    began = 0.0
    skipped = 0
    while engine.busy:
        for update in engine.step():
            answers[update.id].extend(one.token for one in update.sampled)
        if not began and all(answers.values()):
            began, skipped = time.perf_counter() - engine.compile_seconds, sum(map(len, answers.values()))
    seconds = time.perf_counter() - engine.compile_seconds - began
    engine.prefixes.clear()
    return answers, seconds / (sum(map(len, answers.values())) - skipped)
