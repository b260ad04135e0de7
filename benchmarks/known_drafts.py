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
from rwkv_gpu.engine.speculation.proposer import Proposer


class Known(Proposer):
    """Drafts the tokens that will be sampled; each is right with a probability."""

    def __init__(self, answer: list[int], right: float) -> None:
        self.answer, self.right = answer, right
        self.random = np.random.default_rng(0)

    def draft(self, wanted: Sequence[tuple[TokenSequence, int]]) -> dict[TokenSequence, list[int]]:
        drafts = {}
        for sequence, most in wanted:
            done = len(sequence.ids) - sequence.prompt
            answer = self.answer[done : done + most]
            right = self.random.random(len(answer)) < self.right
            drafts[sequence] = [token ^ int(not good) for token, good in zip(answer, right, strict=True)]
        self.steps = max(map(len, drafts.values()), default=0)
        return drafts


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


def generate(engine: Engine, prompt: list[int], count: int) -> tuple[list[int], float]:
    """The greedy answer, and seconds for each token after the first step, without compiling."""
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
