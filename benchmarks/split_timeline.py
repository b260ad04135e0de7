"""What happens when in a split step: what the host does for each part, and how long its device computes."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.split import SplitRunner
from rwkv_gpu.gpu import native
from rwkv_gpu.gpu.trace import Trace

WATCHED: tuple[tuple[Any, str], ...] = (
    (native, "record"),
    (native.Upload, "write"),
    (native, "submit"),
    (native.Landing, "wait"),
    (native.Landing, "take"),
)


class Event(NamedTuple):
    """A call of the host's, in seconds of its clock."""

    part: int
    what: str
    begin: float
    end: float


class Timeline:
    """Calls into wgpu by part, and by the GPUs' own clocks how long each step of a part took."""

    def __init__(self, runner: SplitRunner, steps: int) -> None:
        self.events: list[Event] = []
        self._steps = steps
        self._parts = [part for part in runner.parts if isinstance(part, GpuRunner)]
        self._number: dict[Any, int] = {}
        for number, part in enumerate(self._parts):
            handle = part.device.handle
            self._number |= {id(handle): number, id(handle.queue): number, id(handle._internal): number}
        self._traces = [Trace(part.device, steps + 2) for part in self._parts]  # one is encoded ahead
        self.gpu: list[list[float]] = []  # seconds of each step, by part

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Notes what happens inside."""
        before = [(owner, name, getattr(owner, name)) for owner, name in WATCHED]
        for part, trace in zip(self._parts, self._traces, strict=True):
            part.queue.trace = trace
            part.queue.forget_spares()
        for owner, name, function in before:
            setattr(owner, name, self._noted(function, name))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)
        for part, trace in zip(self._parts, self._traces, strict=True):
            part.queue.forget_spares()
            part.queue.trace = None
            self.gpu.append([float(end - begin) for begin, end in trace.spans(self._steps)])

    def _noted(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(of: Any, *args: Any, **more: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(of, *args, **more)
            finally:
                part = self._number[id(of._device if isinstance(of, native.Landing | native.Upload) else of)]
                self.events.append(Event(part, name, begin, time.perf_counter()))

        return run

    def lines(self, tokens: int = 2) -> Iterator[str]:
        """A table of µs a step by part, then what happened in the last tokens."""
        yield (
            "| µs a step | "
            + " | ".join(("record", "write", "first submit", "others", "GPU", "beyond", "read", "to the next"))
            + " |"
        )
        for part in range(len(self._parts)):
            mine = [event for event in self.events if event.part == part]
            waits = [event for event in mine if event.what == "wait"]
            steps = [_between(mine, *two) for two in itertools.pairwise(waits)]
            spent = {what: _spent([[e for e in step if e.what == what] for step in steps]) for _, what in WATCHED}
            submits = [[event for event in step if event.what == "submit"] for step in steps]
            first, others = _spent([step[:1] for step in submits]), _spent([step[1:] for step in submits])
            under_way = [step[-1].end - submitted[0].end for step, submitted in zip(steps, submits, strict=True)]
            gpu = statistics.median(self.gpu[part])
            begins = sorted(event.begin for event in self.events if event.what == "write")
            takes = [event.end for event in mine if event.what == "take"]
            following = [next((begin for begin in begins if begin > end), end) - end for end in takes]
            beyond = statistics.median(under_way) - gpu
            each = spent["record"], spent["write"], first, others, gpu, beyond, spent["take"]
            cells = " | ".join(f"{1e6 * one:.0f}" for one in (*each, statistics.median(following)))
            yield f"| part {part} | {cells} |"
        last = [event.end for event in self.events if event.what == "take" and event.part == len(self._parts) - 1]
        start = last[-tokens - 1] if len(last) > tokens else 0.0
        for event in self.events:
            if event.begin >= start > 0:
                at, took = 1e6 * (event.begin - start), 1e6 * (event.end - event.begin)
                yield f"{at:8.0f} {took:7.0f}  part {event.part} {event.what}"


def _between(events: list[Event], wait: Event, next_wait: Event) -> list[Event]:
    """What happens after a wait, up to the end of the next one."""
    return [event for event in events if wait.end <= event.begin <= next_wait.begin]


def _spent(steps: list[list[Event]]) -> float:
    """Seconds that such calls take in a step."""
    return statistics.median(sum(event.end - event.begin for event in step) for step in steps)
