"""Profiles a model: times each dispatch of prefill and decode steps, and compares it with the roofline."""

import json
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..engine.engine import Engine
from ..engine.gpu_runner import GpuRunner
from ..engine.request import Request
from ..engine.sampling_params import SamplingParams
from ..engine.speculation.head_drafts import HeadDrafts
from ..engine.speculation.speculator import Speculator
from ..gpu.profile import Profile, StepTime, Timed, profile_plan
from ..ops.batch import Batch
from .bench import OUTPUT, Timing, greedy, rewind, spans, timed
from .roofline import Roofline
from .sizes import aligned
from .workload import Workload

LAYERS, DISPATCHES = 1, 2  # rows within a trace process; each process is a workload
PROMPT = 16
ANSWERED = Workload("pp", 160, 0, 1, PROMPT)  # a prompt and an answer, with drafts
WARM_UP_SECONDS = 0.5  # seconds of work before timing, as clocks drop while kernels are compiled


@dataclass(frozen=True)
class Profiled:
    """One step of a workload by GPU timestamps, and whole steps by the host's clock."""

    workload: Workload  # one step: a chunk of a prompt, or a token of each sequence
    profile: Profile
    step_seconds: float  # duration of a step without timestamps
    host_seconds: float  # part of that spent in Python
    roofline: Roofline

    @property
    def name(self) -> str:
        """pp512 @ d4096, tg b16 @ d4096, or draft b1: a step of the head"""
        work = self.workload
        head = f"{work.kind} b{work.batch}" if work.kind in ("tg", "draft") else f"pp{work.tokens}"
        head = f"tower, {work.tokens:,} patches" if work.kind == "tower" else head
        return head + (f" @ d{work.depth}" if work.depth else "")

    def share(self, step: StepTime) -> float:
        """Efficiency: the roofline's minimum time for a step, divided by its actual time."""
        return self.roofline.seconds(step.nbytes, step.flops) / step.seconds if step.seconds else 0.0

    @property
    def whole(self) -> StepTime:
        """All dispatches as one entry."""
        steps = self.profile.steps
        sums = (sum(getattr(step, name) for step in steps) for name in ("calls", "seconds", "nbytes", "flops"))
        calls, seconds, nbytes, flops = sums
        return StepTime("all", calls, seconds, nbytes, flops)


@dataclass(frozen=True)
class DraftResult:
    """The effect of the model's draft head on a greedy answer to random tokens."""

    drafted: int
    accepted: int
    gain: float | None  # speed of steps with drafts, relative to steps without; None if it is not known

    def __str__(self) -> str:
        gain = "gain unknown" if self.gain is None else f"{self.gain:.2f} times as fast as without"
        return f"drafts: {self.drafted} drafted, {self.accepted} accepted, {gain}"


def draft_result(runner: GpuRunner) -> DraftResult:
    """Answers a random prompt with drafts of the model's head. The engine chooses their length."""
    assert runner.head is not None, "it drafts"
    rewind(runner, ANSWERED)
    head, runner.chunk_size = HeadDrafts(runner), ANSWERED.chunk
    engine = Engine(runner, speculator=Speculator(min(runner.head.most, runner.cache_config.drafts), [head]))
    [prompt] = ANSWERED.ids()
    engine.add(Request(prompt[:PROMPT], SamplingParams(temperature=0.0, max_tokens=ANSWERED.tokens - PROMPT)))
    while engine.busy:
        engine.step()
    return DraftResult(engine.drafted, engine.accepted, engine.activity.gain)


def profile(runner: GpuRunner, works: Iterable[Workload], replays: int, roofline: Roofline) -> Iterator[Profiled]:
    """Profiles each workload, which is one step."""
    for work in works:
        runner.chunk_size = max(work.chunk, work.batch)
        [step] = work.steps()
        timed(runner, work, [step])  # compiles, and allocates
        for _ in range(int(WARM_UP_SECONDS / timed(runner, work, [step]).seconds)):
            timed(runner, work, [step])
        times: list[Timing] = [timed(runner, work, [step]) for _ in range(replays)]
        rewind(runner, work)
        batch = runner.prepare(step)
        plan = runner.plan_for(batch, OUTPUT[work.kind])
        inputs = batch.arrays() | {"draws": greedy(step).draws}
        found = profile_plan(plan, batch.rows, inputs, replays, len(batch.segments), len(batch.outputs), spans(batch))
        seconds, host = (statistics.median(getattr(t, name) for t in times) for name in ("seconds", "host_seconds"))
        yield Profiled(work, found, seconds, host, roofline)


def profile_tower(runner: GpuRunner, step: Batch, replays: int, roofline: Roofline) -> Profiled:
    """Profiles a step of a tower."""
    seconds = []
    for _ in range(replays + 1):  # the first one compiles
        began = time.perf_counter()
        [*_] = runner.features(step)
        runner.store.forget(0)
        seconds.append(time.perf_counter() - began)
    batch = runner.prepare(step)
    plan, counts = runner.plan_for(batch, "features"), (len(batch.segments), len(batch.outputs))
    found = profile_plan(plan, batch.rows, batch.arrays(), replays, *counts, spans(batch))
    runner.store.forget(0)
    work = Workload("tower", batch.rows, 0, 1, batch.rows)
    whole = statistics.median(seconds[1:])
    return Profiled(work, found, whole, max(0.0, whole - found.seconds), roofline)


def table(one: Profiled) -> str:
    """A line per step name, longest time first, and one for the total."""
    heads = ("step", "calls", "ms", "share", "GB/s", "GFLOP/s", "of roofline")
    rows = [(f"`{step.name}`", *_cells(one, step)) for step in one.profile.steps]  # a * is no emphasis
    return aligned([heads, *rows, (one.whole.name, *_cells(one, one.whole))], left=1)


def _cells(one: Profiled, step: StepTime) -> tuple[str, ...]:
    share = step.seconds / one.profile.seconds if one.profile.seconds else 0.0
    rates = f"{step.gbps:.1f}", f"{step.gflops:,.0f}", f"{one.share(step):.0%}"
    return str(step.calls), f"{step.seconds * 1e3:.3f}", f"{share:.1%}", *rates


def heading(one: Profiled) -> str:
    """The line above a table: the step as a whole."""
    work = one.workload
    rate, unit = work.total / one.step_seconds, "patches" if work.kind == "tower" else "tok"
    parts = [
        f"{one.name}: {one.step_seconds * 1e3:.2f} ms a step, {rate:,.1f} {unit}/s",
        f"{one.profile.seconds * 1e3:.2f} ms in {one.whole.calls} dispatches",
        f"{one.host_seconds * 1e3:.2f} ms in Python",
    ]
    return ", ".join(parts)


def as_data(one: Profiled) -> dict[str, object]:
    """All data, for a file."""
    work = one.workload
    return {
        "test": one.name, "tokens": work.tokens, "depth": work.depth, "batch": work.batch,
        "step_ms": one.step_seconds * 1e3, "gpu_ms": one.profile.seconds * 1e3, "host_ms": one.host_seconds * 1e3,
        "steps": [
            {
                "name": step.name, "calls": step.calls, "ms": step.seconds * 1e3, "bytes": step.nbytes,
                "flops": step.flops, "gbps": step.gbps, "gflops": step.gflops, "of_roofline": one.share(step),
            }
            for step in one.profile.steps
        ],
    }  # fmt: skip


def trace(profiles: Sequence[Profiled]) -> str:
    """The timeline as a file for chrome://tracing and ui.perfetto.dev: layers above, dispatches below."""
    events: list[dict[str, Any]] = []
    for number, one in enumerate(profiles, 1):
        events.append(_named("process_name", number, 0, one.name))
        events += [_named("thread_name", number, LAYERS, "layers"), _named("thread_name", number, DISPATCHES, "GPU")]
        events += [_event(timed, number, DISPATCHES) for timed in one.profile.timeline]
        events += [_event(timed, number, LAYERS) for timed in _layers(one.profile.timeline)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def _layers(timeline: Iterable[Timed]) -> Iterator[Timed]:
    """Merges adjacent dispatches of one block; drops dispatches outside blocks."""
    for name, group in groupby(timeline, key=lambda timed: timed.name.partition("/")[0]):
        if name.startswith("blk."):
            first, *rest = group
            last = rest[-1] if rest else first
            yield Timed(name, first.start, last.start + last.seconds - first.start)


def _event(timed: Timed, process: int, thread: int) -> dict[str, Any]:
    at = {"ts": timed.start * 1e6, "dur": timed.seconds * 1e6}
    return {"name": timed.name, "ph": "X", "pid": process, "tid": thread, **at}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
