"""Tokens a second of a runner, with what a step costs beside what the device could do."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..engine.device_sampling import draw_row
from ..engine.gpu_runner import GpuRunner
from ..engine.runner import Logits, Output, Runner
from ..engine.sampling_params import SamplingParams
from ..engine.step_result import PendingStep, SamplingInputs
from ..gpu.plan import Plan
from ..ops.batch import Batch
from ..ops.sampling import DRAW
from ..ops.vocabulary import PAGE
from .energy import Meter
from .roofline import Roofline
from .workload import Workload

# What the last step of a prompt gives, each of decode, and each of embeddings.
OUTPUT: dict[str, Output] = {"pp": "logits", "tg": "plain", "embed": "hidden"}
Pool = Callable[[Logits], object]  # makes one vector of all tokens of a text, [T, D]


@dataclass(frozen=True)
class Cost:
    """What one pass over a workload asks of a device."""

    steps: int
    dispatches: int  # of one step
    dispatches_per_layer: float
    nbytes: int  # of all steps
    flops: int


@dataclass(frozen=True)
class Timing:
    """What one pass took."""

    seconds: float
    host_seconds: float  # of a core, in Python: placing, encoding, submitting


@dataclass(frozen=True)
class Result:
    """A workload, what it costs on a GPU, and several passes over it."""

    workload: Workload
    passes: tuple[Timing, ...]
    cost: Cost | None
    roofline: Roofline | None
    joules: float | None = None  # of all passes; None where no meter is

    @property
    def tokens_per_joule(self) -> float | None:
        """Over all passes; None where nobody tells, or a pass is too short for the meter."""
        return self.workload.total * len(self.passes) / self.joules if self.joules else None

    @property
    def rates(self) -> list[float]:
        """Tokens a second of each pass."""
        return [self.workload.total / one.seconds for one in self.passes]

    @property
    def rate(self) -> float:
        """Their mean."""
        return statistics.mean(self.rates)

    @property
    def texts_per_second(self) -> float | None:
        """The mean of embeddings; None of what has no whole texts."""
        return self.rate / self.workload.tokens if self.workload.kind == "embed" else None

    @property
    def deviation(self) -> float:
        """Their standard deviation; 0 for a single pass."""
        return statistics.stdev(self.rates) if len(self.passes) > 1 else 0.0

    @property
    def seconds(self) -> float:
        """Of the pass in the middle."""
        return statistics.median(one.seconds for one in self.passes)

    @property
    def host_share(self) -> float:
        """The part of the time that Python takes."""
        return statistics.median(one.host_seconds / one.seconds for one in self.passes)

    @property
    def bandwidth_share(self) -> float:
        """Bytes moved beside what the device streams in that time."""
        if self.cost is None or self.roofline is None:
            return math.nan
        return self.cost.nbytes / self.seconds / self.roofline.bytes_per_second

    @property
    def compute_share(self) -> float:
        """Flops beside what the device computes in that time."""
        if self.cost is None or self.roofline is None:
            return math.nan
        return self.cost.flops / self.seconds / self.roofline.flops_per_second


def bench(
    runner: Runner,
    works: Iterable[Workload],
    repeats: int,
    roofline: Roofline | None = None,
    meter: Meter | None = None,
    pool: Pool = len,
) -> Iterator[Result]:
    """Each workload: once to warm up, then `repeats` times, with the energy that these take.

    `pool` is the work of the host on every text that is embedded.
    """
    for work in works:
        runner.chunk_size = max(work.chunk, work.together)  # a plan for just so many rows
        steps = work.steps()
        cost = warm_up(runner, work, steps) if isinstance(runner, GpuRunner) else None
        if cost is None:
            timed(runner, work, steps, pool)
        before = meter.joules() if meter else 0.0
        passes = [timed(runner, work, steps, pool) for _ in range(repeats)]
        joules = meter.joules() - before if meter else None
        yield Result(work, tuple(passes), cost, roofline, joules)


def warm_up(runner: GpuRunner, work: Workload, steps: list[Batch]) -> Cost:
    """Records every plan, runs the first and the last step, and adds up what all will cost."""
    rewind(runner, work)
    nbytes = flops = 0
    for step in steps:
        plan = runner.plan_for(runner.prepare(step), OUTPUT[work.kind])
        plan.bind(plan.step.steps)
        cost = plan.cost(step.rows, len(step.outputs), spans(step))
        nbytes, flops = nbytes + cost[0], flops + cost[1]
    for step in (steps[0], steps[-1]):
        timed(runner, replace(work, depth=step.segments[0].start), [step])
    return Cost(len(steps), len(plan.dispatches), per_layer(plan), nbytes, flops)


def per_layer(plan: Plan) -> float:
    """Dispatches inside of layers, by layer."""
    layers = [dispatch.name.split("/")[0] for dispatch in plan.dispatches if dispatch.name.startswith("blk.")]
    return len(layers) / max(1, len(set(layers)))


def timed(runner: Runner, work: Workload, steps: list[Batch], pool: Pool = len) -> Timing:
    """One pass, wherever the model runs."""
    if work.kind == "embed":
        return embed(runner, work, steps, pool)
    return on_gpu(runner, work, steps) if isinstance(runner, GpuRunner) else on_host(runner, work, steps)


def embed(runner: Runner, work: Workload, steps: list[Batch], pool: Pool = len) -> Timing:
    """One pass over texts, as `Engine.hidden` has it: each step waits for its rows, which the host pools."""
    rewind(runner, work)
    begin, host = time.perf_counter(), time.thread_time()
    for step in steps:
        rows = runner.hidden(step)
        for segment in step.segments:
            pool(rows[segment.first :][: segment.count])
    return Timing(time.perf_counter() - begin, time.thread_time() - host)


def on_gpu(runner: GpuRunner, work: Workload, steps: list[Batch], look_ahead: int | None = None) -> Timing:
    """One pass. Of decode some steps are under way before the tokens of the first are known, as in the engine."""
    ahead = runner.cache_config.look_ahead if look_ahead is None else look_ahead
    runner.run_ahead(ahead)
    rewind(runner, work)
    return run(runner, work, steps, ahead)


def run(runner: GpuRunner, work: Workload, steps: list[Batch], look_ahead: int) -> Timing:
    """The steps of a workload, from where its sequences are."""
    flights = deque[PendingStep]()
    draws = greedy(steps[0])
    begin, host = time.perf_counter(), time.thread_time()  # who waits computes nothing
    for step in steps:
        batch = runner.prepare(step)
        if work.kind == "tg":
            flights.append(runner.submit(batch, draws))
        else:
            plan = runner.plan_for(batch)
            counts = len(batch.segments), len(batch.outputs), runner.queue.layers_per_submit
            plan.run(batch.rows, batch.arrays(), *counts)
        while len(flights) > look_ahead:
            flights.popleft().wait()
    for flight in flights:
        flight.wait()
    if work.kind == "pp":
        plan.read("logits", len(steps[-1].outputs))
    return Timing(time.perf_counter() - begin, time.thread_time() - host)


def greedy(step: Batch) -> SamplingInputs:
    """Every sequence says what is likeliest; the next step says something else all the same."""
    rows = [draw_row(SamplingParams(temperature=0.0), 0, segment.slot) for segment in step.segments]
    return SamplingInputs.of(np.array(rows, DRAW))


def on_host(runner: Runner, work: Workload, steps: list[Batch]) -> Timing:
    """One pass in numpy, or over several devices, where each step waits for the one before."""
    rewind(runner, work)
    begin = time.perf_counter()
    draws = greedy(steps[0])
    for step in steps:
        if work.kind == "tg":
            runner.submit(runner.prepare(step), draws).wait()
        else:
            runner.step(step)
    seconds = time.perf_counter() - begin
    return Timing(seconds, seconds)


def rewind(runner: Runner, work: Workload) -> None:
    """Puts every sequence to where the workload begins; nothing is said on the way there: it costs alike."""
    for slot in range(runner.slots):
        runner.store.begin(slot, 0)  # all first: the memory of all is that of the largest workload
    for slot in range(work.batch if work.depth else 0):
        runner.store.begin(slot, work.depth)


def spans(step: Batch) -> list[tuple[int, int]]:
    """Where each sequence starts in a step, and its rows."""
    return [(segment.start, segment.count) for segment in step.segments]


def needed(works: Iterable[Workload]) -> tuple[int, int, int, int]:
    """Sequences, positions of one, positions of all, and rows of a step that a runner must have room for."""
    sizes = [
        (work.together, work.end, work.together * -(-work.end // PAGE) * PAGE, max(work.chunk, work.together))
        for work in works
    ]
    slots, context, tokens, rows = np.array(sizes).max(axis=0).tolist()
    return slots, context, tokens, rows
