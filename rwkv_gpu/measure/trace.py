"""A profile as a timeline that chrome://tracing and ui.perfetto.dev open: layers above, dispatches below."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from ..gpu.profile import Timed
from .profiling import Profiled

LAYERS, DISPATCHES = 1, 2  # rows of a process; a process is a workload


def trace(profiles: Sequence[Profiled]) -> str:
    """The whole file."""
    events: list[dict[str, Any]] = []
    for number, one in enumerate(profiles, 1):
        events.append(_named("process_name", number, 0, one.name))
        events += [_named("thread_name", number, LAYERS, "layers"), _named("thread_name", number, DISPATCHES, "GPU")]
        events += [_event(timed, number, DISPATCHES) for timed in one.profile.timeline]
        events += [_event(timed, number, LAYERS) for timed in _layers(one.profile.timeline)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def _layers(timeline: Iterable[Timed]) -> Iterator[Timed]:
    """Neighbours of one block as one; what is in no block is left out."""
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
