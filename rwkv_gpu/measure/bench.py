"""Measures tokens per second of a runner, and the share of the device's capacity that a step uses."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..engine.device_sampling import draw_row
from ..engine.gpu_runner import GpuRunner
from ..engine.runner import DraftOutput, Logits, Output, Runner
from ..engine.sampling_params import SamplingParams
from ..engine.step_result import PendingStep, SamplingInputs
from ..gpu.plan import Plan
from ..ops.batch import Batch
from ..ops.sampling import DRAW
from ..ops.vocabulary import PAGE
from .energy import Meter
from .roofline import Roofline
from .workload import Workload

# The outputs of three kinds of steps: the last of a prompt, decode, and embedding.
OUTPUT: dict[str, Output] = {"pp": "logits", "tg": "plain", "embed": "hidden", "draft": DraftOutput("plain", 0)}
Pool = Callable[[Logits], object]  # pools all tokens of a text, [T, D], to one vector


@dataclass(frozen=True)
class Cost:
    """The work of one pass over a workload."""

    steps: int
    dispatches: int  # per step
    dispatches_per_layer: float
    nbytes: int  # over all steps
    flops: int


@dataclass(frozen=True)
class Timing:
    """The times of one pass."""

    seconds: float
    host_seconds: float  # CPU seconds in Python: placing, encoding, submitting


@dataclass(frozen=True)
class Result:
    """A workload, its cost on a GPU, and the timings of several passes."""

    workload: Workload
    passes: tuple[Timing, ...]
    cost: Cost | None
    roofline: Roofline | None
    joules: float | None = None  # over all passes; None without a meter

    @property
    def tokens_per_joule(self) -> float | None:
        """Tokens per joule over all passes; None without a meter, or if a pass is too short to measure."""
        return self.workload.total * len(self.passes) / self.joules if self.joules else None

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each pass."""
        return [self.workload.total / one.seconds for one in self.passes]

    @property
    def rate(self) -> float:
        """Mean tokens per second."""
        return statistics.mean(self.rates)

    @property
    def texts_per_second(self) -> float | None:
        """Mean texts per second of embeddings; None for other workloads."""
        return self.rate / self.workload.tokens if self.workload.kind == "embed" else None

    @property
    def deviation(self) -> float:
        """Standard deviation of the rates; 0 for a single pass."""
        return statistics.stdev(self.rates) if len(self.passes) > 1 else 0.0

    @property
    def seconds(self) -> float:
        """Median time of a pass."""
        return statistics.median(one.seconds for one in self.passes)

    @property
    def host_share(self) -> float:
        """The share of time spent in Python."""
        return statistics.median(one.host_seconds / one.seconds for one in self.passes)

    @property
    def bandwidth_share(self) -> float:
        """Bytes moved, relative to what the device could stream in that time."""
        if self.cost is None or self.roofline is None:
            return math.nan
        return self.cost.nbytes / self.seconds / self.roofline.bytes_per_second

    @property
    def compute_share(self) -> float:
        """Flops, relative to what the device could compute in that time."""
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
    """Measures each workload: once to warm up, then `repeats` times, with the energy used.

    `pool` is the host's work for each embedded text.
    """
    for work in works:
        runner.chunk_size = max(work.chunk, work.together)  # a plan with exactly this many rows
        steps = work.steps()
        cost = warm_up(runner, work, steps) if isinstance(runner, GpuRunner) else None
        if cost is None:
            timed(runner, work, steps, pool)
        before = meter.joules() if meter else 0.0
        passes = [timed(runner, work, steps, pool) for _ in range(repeats)]
        joules = meter.joules() - before if meter else None
        yield Result(work, tuple(passes), cost, roofline, joules)


def warm_up(runner: GpuRunner, work: Workload, steps: list[Batch]) -> Cost:
    """Records every plan, runs the first and the last step, and adds up the cost of all steps."""
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
    """The number of dispatches per layer, counting only those inside layers."""
    layers = [dispatch.name.split("/")[0] for dispatch in plan.dispatches if dispatch.name.startswith("blk.")]
    return len(layers) / max(1, len(set(layers)))


def timed(runner: Runner, work: Workload, steps: list[Batch], pool: Pool = len) -> Timing:
    """Times one pass, on any runner."""
    if work.kind == "embed":
        return embed(runner, work, steps, pool)
    return on_gpu(runner, work, steps) if isinstance(runner, GpuRunner) else on_host(runner, work, steps)


def embed(runner: Runner, work: Workload, steps: list[Batch], pool: Pool = len) -> Timing:
    """Times one pass over texts, as in `Engine.hidden`: each step waits for its rows, which the host pools."""
    rewind(runner, work)
    begin, host = time.perf_counter(), time.thread_time()
    for step in steps:
        rows = runner.hidden(step)
        for segment in step.segments:
            pool(rows[segment.first :][: segment.count])
    return Timing(time.perf_counter() - begin, time.thread_time() - host)


def on_gpu(runner: GpuRunner, work: Workload, steps: list[Batch], look_ahead: int | None = None) -> Timing:
    """Times one pass. In decode, steps are submitted ahead, as in the engine."""
    ahead = runner.cache_config.look_ahead if look_ahead is None else look_ahead
    runner.run_ahead(ahead)
    rewind(runner, work)
    return run(runner, work, steps, ahead)


def run(runner: GpuRunner, work: Workload, steps: list[Batch], look_ahead: int) -> Timing:
    """Runs the steps of a workload from the current positions of its sequences."""
    flights = deque[PendingStep]()
    draws = greedy(steps[0])
    begin, host = time.perf_counter(), time.thread_time()  # waiting uses no CPU time
    for step in steps:
        batch = runner.prepare(step)
        if work.kind in ("tg", "draft"):
            submit = runner.submit if work.kind == "tg" else runner.draft
            flights.append(submit(batch, draws))
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
    """Greedy sampling for every sequence; the next step feeds other tokens anyway."""
    rows = [draw_row(SamplingParams(temperature=0.0), 0, segment.slot) for segment in step.segments]
    return SamplingInputs.of(np.array(rows, DRAW))


def on_host(runner: Runner, work: Workload, steps: list[Batch]) -> Timing:
    """Times one pass in numpy, or over several devices, where each step waits for the previous one."""
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
    """Moves every sequence to the start of the workload without computing it; the contents do not affect the cost."""
    for slot in range(runner.slots):
        runner.store.begin(slot, 0)  # first frees all slots, as the memory fits only the largest workload
    for slot in range(work.batch if work.depth else 0):
        runner.store.begin(slot, work.depth)


def spans(step: Batch) -> list[tuple[int, int]]:
    """The start of each sequence in a step, and its number of rows."""
    return [(segment.start, segment.count) for segment in step.segments]


def needed(works: Iterable[Workload]) -> tuple[int, int, int, int]:
    """Sequences, positions per sequence, total positions, and rows of a step that a runner needs."""
    sizes = [
        (work.together, work.end, work.together * -(-work.end // PAGE) * PAGE, max(work.chunk, work.together))
        for work in works
    ]
    slots, context, tokens, rows = np.array(sizes).max(axis=0).tolist()
    return slots, context, tokens, rows
