"""Measures the gain of drafts: tokens per second by draft length and acceptance, compared with no drafts.

    python -m benchmarks.head_drafts                                    # the models of TARGETS, one after the other
    python -m benchmarks.head_drafts qwen3.5-9b-mtp --drafts 1,2,3 --right 0.6,0.8,0.9 --sequences 1,4
    python -m benchmarks.head_drafts gpt-oss-20b+gpt-oss-20b-eagle3
    python -m benchmarks.head_drafts llama-8b-q4_k_m --drafts 3,7,15     # without a head: drafts are free

A model is a synthetic name or a file; `MODEL+HEAD` takes the head of another file. Weights are generated on reading, so
nothing is downloaded or written. The head runs its steps, but tokens of the known answer replace its own: each is
correct with the given probability. Drafts have a fixed length. Each row also has the time of a step that drafts and
verifies, relative to a step without drafts. The gain is the number of tokens of a step, divided by this ratio.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import click
import numpy as np

from rwkv_gpu.cli.options import device_option, numbers
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import PartRunner
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.scheduler import ScheduledChunk
from rwkv_gpu.engine.sequence import TokenSequence
from rwkv_gpu.engine.speculation.head_drafts import HeadDrafts, QueuedDrafts
from rwkv_gpu.engine.speculation.proposer import Proposer
from rwkv_gpu.engine.speculation.speculator import Speculator
from rwkv_gpu.engine.step_result import PendingStep, StepResult
from rwkv_gpu.gpu.adapters import Adapter
from rwkv_gpu.llm.drafts import DraftOptions, joined_head
from rwkv_gpu.llm.folders import tuned_folder
from rwkv_gpu.measure.workload import FIRST_ID, LAST_ID
from rwkv_gpu.models.heads import predicting
from rwkv_gpu.models.layered import Layered
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Placement
from rwkv_gpu.ops.open_device import open_device

from .opening import adapter_of, open_model

TARGETS = "qwen3.5-9b-mtp", "qwen3.5-35b-a3b-mtp", "glm-4.7-flash-30b-mtp", "gpt-oss-20b+gpt-oss-20b-eagle3"


class Known(Proposer):
    """Drafts the tokens of known answers, by prompt. Each is right with a given probability."""

    def __init__(self, answers: Mapping[tuple[int, ...], list[int]], right: float) -> None:
        self.answers, self.right = answers, right
        self.random = np.random.default_rng(0)
        self.known: dict[TokenSequence, int] = {}  # tokens of each answer after the last draft

    def draft(self, wanted: Sequence[tuple[TokenSequence, int]]) -> dict[TokenSequence, list[int]]:
        drafts = {}
        for sequence, most in wanted:
            # If the draft before is still being verified, its right tokens are counted here.
            done = self.known[sequence] if sequence.unverified else len(sequence.ids) - sequence.prompt
            answer = self.answers[tuple(sequence.ids[: sequence.prompt])][done : done + most]
            right = self.random.random(len(answer)) < self.right
            self.known[sequence] = done + 1 + int(right.cumprod().sum())
            drafts[sequence] = [abs(token - int(not good)) for token, good in zip(answer, right, strict=True)]
        self.steps = max(map(len, drafts.values()), default=0)
        return drafts


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


@dataclass(frozen=True)
class Task:
    """The prompts of several sequences, and the length of their answers."""

    prompts: list[list[int]]
    count: int
    repeats: int


@dataclass(frozen=True)
class Answered:
    """The answers of all sequences, the time of one step, and the tokens of one step over all sequences."""

    answers: dict[tuple[int, ...], list[int]]
    step: float
    tokens: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.step


def runner_of(adapter: Adapter, name: str, most: int, sequences: int, room: int) -> GpuRunner:
    """Loads a model with its head or the head of another file, if any; without one if `most` is 0."""
    model_name, _, head = name.partition("+")
    with ExitStack() as stack:
        file = stack.enter_context(open_model(model_name))
        model = load_model(file)
        if most:
            found = DraftOptions().head(model)
            if head:
                file, found = joined_head(stack.enter_context(open_model(head)), file, model)
            if found is not None and isinstance(model, Layered):
                model = predicting(model, found)
        device = open_device(adapter, folder=tuned_folder())
        return GpuRunner(device, file, model, slots=sequences, context=room, cache_bytes=0, drafts=most, kv="f16")


def answered(engine: Engine, task: Task) -> Answered:
    """Runs the task several times, the first uncounted. Times are medians over steps without prompts."""
    seconds, tokens = [], []
    for run in range(task.repeats + 1):
        how = SamplingParams(temperature=0, max_tokens=task.count)
        ids = {engine.add(Request(prompt, how)): tuple(prompt) for prompt in task.prompts}
        answers: dict[tuple[int, ...], list[int]] = {prompt: [] for prompt in ids.values()}
        began, counted, steps = 0.0, 0, 0
        while engine.busy:
            for update in engine.step():
                answers[ids[update.id]] += [one.token for one in update.sampled]
            done = sum(map(len, answers.values()))
            if all(answers.values()) and not began:
                began, counted = time.perf_counter() - engine.compile_seconds, done
                steps = engine.activity.steps - len(engine._in_flight)
        if run:
            seconds.append(time.perf_counter() - engine.compile_seconds - began)
            tokens.append((sum(map(len, answers.values())) - counted, engine.activity.steps - steps))
        engine.prefixes.clear()
    total, steps = map(sum, zip(*tokens, strict=True))
    return Answered(answers, statistics.median(seconds) * task.repeats / steps, total / steps)


def rows_of(adapter: Adapter, name: str, task: Task, drafts: Sequence[int], right: Sequence[float]) -> None:
    """Prints the rows of a model."""
    sequences, most = len(task.prompts), max(drafts)
    room = len(task.prompts[0]) + task.count + most + 1
    runner = runner_of(adapter, name, 0, sequences, room)
    plain = answered(Engine(runner), task)
    runner.close()
    click.echo(f"| {name} | {sequences} | 0 |  | {plain.rate:,.1f} | 1.00 | 1.00 |  |")
    runner = runner_of(adapter, name, most, sequences, room)
    for count in drafts:
        for share in right:
            known = Known(plain.answers, share)
            proposer = KnownHead(runner, known) if runner.head else known
            engine = Engine(runner, speculator=Speculator(count, [proposer], always=True))
            found = answered(engine, task)
            accepted = engine.accepted / engine.drafted
            other = "" if found.answers == plain.answers else " (another answer: rounding)"
            click.echo(
                f"| {name} | {sequences} | {count} | {share:.0%} | {found.rate:,.1f} | {found.rate / plain.rate:.2f} | "
                f"{found.step / plain.step:.2f} | {accepted:.0%}{other} |"
            )
    runner.close()


@click.command()
@click.argument("models", nargs=-1)
@click.option("--drafts", type=numbers, default="1,2,3", help="Tokens of a draft.")
@click.option("--right", default="0.6,0.8,0.9", help="Shares of drafted tokens that are right.")
@click.option("--sequences", type=numbers, default="1", help="Sequences at a time.")
@click.option("--prompt", "length", default=32, help="Tokens of a prompt.")
@click.option("-n", "count", default=128, help="Tokens of an answer.")
@click.option("-r", "--repeats", type=click.IntRange(1), default=2)
@device_option
def main(
    models: Sequence[str],
    drafts: list[int],
    right: str,
    sequences: list[int],
    length: int,
    count: int,
    repeats: int,
    device: str,
) -> None:
    """Prints a row for each model, number of sequences, length and acceptance of drafts."""
    adapter = adapter_of(device)
    columns = ["model", "sequences", "drafts", "right", "tok/s", "times", "step", "accepted of drafted"]
    click.echo(f"{adapter}\n\n| {' | '.join(columns)} |\n|---{'|--:' * (len(columns) - 1)}|")
    for name in models or TARGETS:
        for each in sequences:
            prompts = np.random.default_rng(0).integers(FIRST_ID, LAST_ID, (each, length)).tolist()
            rows_of(adapter, name, Task(prompts, count, repeats), drafts, [*map(float, right.split(","))])


if __name__ == "__main__":
    main()
