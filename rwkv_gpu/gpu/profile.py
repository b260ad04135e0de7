"""Profiles a plan by the GPU's clock: times every dispatch, and sums by name."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedDevice
from . import native, wgpu
from .cost import Span
from .plan import Plan
from .typed_errors import TypedErrors

QUERIES = 4096  # maximum size of a query set in WebGPU


@dataclass(frozen=True)
class StepTime:
    """The time of all dispatches of one name: `blk.3/key` and `blk.4/key` both count as `blk.*/key`."""

    name: str
    calls: int  # per replay
    seconds: float  # per replay, the median over all replays
    nbytes: int
    flops: int

    @property
    def gbps(self) -> float:
        """GB/s moved."""
        return self.nbytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gflops(self) -> float:
        """GFLOP/s computed."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Timed:
    """The time of one dispatch of one replay."""

    name: str
    start: float  # seconds after the start of the step's first dispatch
    seconds: float


@dataclass(frozen=True)
class Profile:
    """The profile of a plan: times by name, and in total."""

    rows: int
    replays: int
    steps: tuple[StepTime, ...]  # longest first
    seconds: float
    timeline: tuple[Timed, ...]  # one replay, in the order of the plan


def profile_plan(
    plan: Plan,
    rows: int,
    inputs: Mapping[str, npt.ArrayLike],
    replays: int = 10,
    segments: int = 0,
    outputs: int = 0,
    spans: Sequence[Span] = (),
) -> Profile:
    """Times every dispatch of a step by the GPU's clock, over several replays; `spans` are its sequences."""
    write = partial(plan.step.write, rows, inputs, segments, outputs)
    stamps = np.array([_replay(plan, write) for _ in range(replays)])  # [replays, dispatches, begin and end] seconds
    median = np.median(stamps[..., 1] - stamps[..., 0], axis=0)
    sums: dict[str, list[Any]] = {}
    for dispatch, seconds in zip(plan.dispatches, median, strict=True):
        entry = sums.setdefault(re.sub(r"\bblk\.\d+", "blk.*", dispatch.name), [0, 0.0, 0, 0])
        entry[0] += 1
        entry[1] += float(seconds)
        nbytes, flops = dispatch.cost(rows, outputs, spans)
        entry[2] += nbytes
        entry[3] += flops
    steps = sorted((StepTime(name, *entry) for name, entry in sums.items()), key=lambda step: -step.seconds)
    spread = zip(plan.dispatches, stamps[-1].tolist(), strict=True)
    timeline = tuple(Timed(dispatch.name, begin, end - begin) for dispatch, (begin, end) in spread)
    return Profile(rows, replays, tuple(steps), float(median.sum()), timeline)


def _replay(plan: Plan, write: Callable[[], None]) -> npt.NDArray[np.float64]:
    """Begin and end of each dispatch of one replay, in seconds after the first begin. [dispatches, 2]"""
    capabilities = plan.device.capabilities
    if not capabilities.timestamps:
        raise UnsupportedDevice(
            f"{plan.device.adapter} has no timestamp queries, so it cannot be profiled; try another --device"
        )
    write()
    encode = _encode_in_pass if capabilities.timestamps_in_pass else _encode_by_pass
    ticks: list[npt.NDArray[np.int64]] = []
    for first in range(0, len(plan.dispatches), QUERIES // 2):
        dispatches = range(first, min(first + QUERIES // 2, len(plan.dispatches)))
        ticks.append(_run_timed(plan, dispatches, encode).reshape(-1, 2))
    every = np.concatenate(ticks)  # ticks may count from an epoch, and have more digits than a float
    since: npt.NDArray[np.float64] = (every - every[0, 0]).astype(np.float64)
    return since * native.timestamp_period(plan.device.handle) * 1e-9


def time_replay(
    plan: Plan, rows: int, inputs: Mapping[str, npt.ArrayLike], segments: int = 0, outputs: int = 0
) -> float:
    """Seconds of one replay in a single pass, as in normal use. Uses the host's clock if the device has none."""
    plan.step.write(rows, inputs, segments, outputs)
    if plan.device.capabilities.timestamps:
        begin, end = _stamped(plan, 2, partial(_encode_whole, plan)).tolist()
        return float(end - begin) * native.timestamp_period(plan.device.handle) * 1e-9
    native.wait(plan.device.handle)
    start = time.perf_counter()
    plan.device.submit([plan.encode()])
    native.wait(plan.device.handle)
    return time.perf_counter() - start


def _run_timed(plan: Plan, dispatches: range, encode: Any) -> npt.NDArray[np.int64]:
    """Begin and end stamps of each dispatch, interleaved."""
    return _stamped(plan, 2 * len(dispatches), lambda encoder, queries: encode(plan, encoder, dispatches, queries))


def _stamped(plan: Plan, count: int, encode: Callable[[Any, Any], None]) -> npt.NDArray[np.int64]:
    """Runs encoded commands, and returns the ticks in a query set."""
    device = plan.device
    with TypedErrors("profiling"):
        queries = device.handle.create_query_set(type=wgpu.QueryType.timestamp, count=count)
        resolved = device.handle.create_buffer(
            size=8 * count, usage=wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        )
        encoder = device.handle.create_command_encoder()
        encode(encoder, queries)
        encoder.resolve_query_set(queries, 0, count, resolved, 0)
        device.submit([encoder.finish()])
        stamps = np.frombuffer(device.queue.read_buffer(resolved), np.int64)
        resolved.destroy()
        queries.destroy()
    return stamps


def _encode_whole(plan: Plan, encoder: Any, queries: Any) -> None:
    compute = encoder.begin_compute_pass(timestamp_writes=_around(queries, 0))
    native.replay(compute, plan.program)
    compute.end()


def _around(queries: Any, first: int) -> dict[str, Any]:
    """The timestamp writes for the start and the end of a pass."""
    return {"query_set": queries, "beginning_of_pass_write_index": first, "end_of_pass_write_index": first + 1}


def _encode_in_pass(plan: Plan, encoder: Any, dispatches: Iterable[int], queries: Any) -> None:
    compute = encoder.begin_compute_pass()
    for number, index in enumerate(dispatches):
        native.write_timestamp(compute, queries, 2 * number)
        _encode_one(plan, compute, index)
        native.write_timestamp(compute, queries, 2 * number + 1)
    compute.end()


def _encode_by_pass(plan: Plan, encoder: Any, dispatches: Iterable[int], queries: Any) -> None:
    for number, index in enumerate(dispatches):
        compute = encoder.begin_compute_pass(timestamp_writes=_around(queries, 2 * number))
        _encode_one(plan, compute, index)
        compute.end()


def _encode_one(plan: Plan, compute: Any, index: int) -> None:
    dispatch = plan.dispatches[index]
    compute.set_pipeline(dispatch.pipeline.handle)
    compute.set_bind_group(0, plan.groups[index])
    compute.dispatch_workgroups(*dispatch.grid)
