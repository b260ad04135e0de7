"""Tokens a second of a runner, with what a step costs beside what the device could do."""

import math
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..engine.runner import GpuRunner, Runner
from ..gpu.plan import Plan
from ..ops.batch import Batch
from .roofline import Roofline
from .workload import Workload


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

    @property
    def rates(self) -> list[float]:
        """Tokens a second of each pass."""
        return [self.workload.total / one.seconds for one in self.passes]

    @property
    def rate(self) -> float:
        """Their mean."""
        return statistics.mean(self.rates)

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
    runner: Runner, works: Iterable[Workload], repeats: int, roofline: Roofline | None = None
) -> Iterator[Result]:
    """Each workload: once to warm up, then `repeats` times."""
    for work in works:
        runner.chunk_size = max(work.chunk, work.batch)  # a plan for just so many rows
        steps = work.steps()
        if isinstance(runner, GpuRunner):
            cost: Cost | None = warm_up(runner, work, steps)
            passes = [on_gpu(runner, work, steps) for _ in range(repeats)]
        else:
            cost = None
            passes = [on_host(runner, work, steps) for _ in range(repeats + 1)][1:]
        yield Result(work, tuple(passes), cost, roofline)


def warm_up(runner: GpuRunner, work: Workload, steps: list[Batch]) -> Cost:
    """Records every plan, runs the first and the last step, and adds up what all will cost."""
    rewind(runner, work)
    nbytes = flops = 0
    for step in steps:
        plan = runner.plan_for(runner.prepare(step))
        cost = plan.cost(step.rows, len(step.outputs), spans(step))
        nbytes, flops = nbytes + cost[0], flops + cost[1]
    runner.step(steps[-1])
    rewind(runner, work)
    runner.step(steps[0])
    return Cost(len(steps), len(plan.dispatches), per_layer(plan), nbytes, flops)


def per_layer(plan: Plan) -> float:
    """Dispatches inside of layers, by layer."""
    layers = [dispatch.name.split("/")[0] for dispatch in plan.dispatches if dispatch.name.startswith("blk.")]
    return len(layers) / max(1, len(set(layers)))


def on_gpu(runner: GpuRunner, work: Workload, steps: list[Batch]) -> Timing:
    """One pass. Decode waits for the logits of each step, as a sampler on the host does; a prompt for its last ones."""
    rewind(runner, work)
    wait_each = work.kind == "tg"
    host = 0.0
    begin = time.perf_counter()
    for step in steps:
        start = time.thread_time()  # where submitting has to wait, nobody computes
        plan = submit(runner, step)
        host += time.thread_time() - start
        if wait_each or step is steps[-1]:
            plan.read("logits", len(step.outputs))
    return Timing(time.perf_counter() - begin, host)


def submit(runner: GpuRunner, step: Batch) -> Plan:
    """A step on its way to the device."""
    batch = runner.prepare(step)
    plan = runner.plan_for(batch)
    plan.run(batch.rows, batch.arrays(), len(batch.segments), len(batch.outputs), runner.layers_per_submit)
    return plan


def on_host(runner: Runner, work: Workload, steps: list[Batch]) -> Timing:
    """One pass in numpy."""
    rewind(runner, work)
    begin = time.perf_counter()
    for step in steps:
        runner.step(step)
    seconds = time.perf_counter() - begin
    return Timing(seconds, seconds)


def rewind(runner: Runner, work: Workload) -> None:
    """Puts every sequence to where the workload begins; nothing is said on the way there: it costs alike."""
    for slot in range(runner.slots):
        runner.places.begin(slot, work.depth if slot < work.batch else 0)


def spans(step: Batch) -> list[tuple[int, int]]:
    """Where each sequence starts in a step, and its rows."""
    return [(segment.start, segment.count) for segment in step.segments]


def needed(works: Iterable[Workload]) -> tuple[int, int, int]:
    """Sequences, positions and rows of a step that a runner must have room for."""
    sizes = np.array([(work.batch, work.end, max(work.chunk, work.batch)) for work in works])
    slots, context, rows = sizes.max(axis=0).tolist()
    return slots, context, rows
