"""Where the time to a first token goes: when each request was at each stage, by one clock for all processes."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rwkv_gpu
from rwkv_gpu.engine.step_result import PendingStep, SamplingInputs
from rwkv_gpu.llm import LLM
from rwkv_gpu.llm.answer import Item
from rwkv_gpu.llm.completion import Event
from rwkv_gpu.llm.replies import Prepared
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.server.answers import Answers, Inbox
from rwkv_gpu.server.call import Call
from rwkv_gpu.server.service import Running, Service

BEGAN = b"x-began"  # a header: when the client began to connect
STAGES = ("parsed", "prepared", "submitted", "generated", "delivered", "written")


class TimedInbox(Inbox):
    """Notes when the engine gives the first token of a request, and when the event loop gets it."""

    def put(self, answers: Answers, index: int, item: Item) -> None:
        if type(item) is Event and not hasattr(answers, "generated"):
            answers.generated = time.perf_counter()  # type: ignore[attr-defined]
        super().put(answers, index, item)


class TimedService(Service):
    """Notes for each request when it was parsed, prepared, submitted and so on."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.marks: list[list[float]] = []  # of each request, from its beginning at the client through all stages

    async def begin(self, call: Call, model: str | None, prepare: Callable[..., Prepared]) -> Running:
        marks = [float(call.headers.get(BEGAN, b"nan")), time.perf_counter()]

        def timed(llm: LLM, **more: Any) -> Prepared:
            prepared = prepare(llm, **more)
            marks.append(time.perf_counter())
            return prepared

        if self._inbox is None:
            self._inbox = TimedInbox(asyncio.get_running_loop())
        running = await super().begin(call, model, timed)
        marks.append(time.perf_counter())
        count = running._count

        def counted(events: int) -> None:
            if len(marks) == 4:
                marks.append(running.answers.generated)  # type: ignore[attr-defined]
                marks.append(time.perf_counter())
                asyncio.get_running_loop().call_soon(lambda: marks.append(time.perf_counter()))
            count(events)

        running._count = counted  # type: ignore[method-assign]
        self.marks.append(marks)
        return running

    def report(self) -> str:
        """The medians of all stages, in ms from the beginning at the client, and how long the slowest took."""
        table = np.array([marks for marks in self.marks if len(marks) == 1 + len(STAGES)])
        if not len(table):
            return "no requests"
        after = 1e3 * (table[:, 1:] - table[:, :1])
        each = zip(STAGES, np.median(after, 0), np.percentile(after, 99, 0), strict=True)
        return ", ".join(f"{name} {half:.1f} ({most:.1f})" for name, half, most in each)


@dataclass
class Steps:
    """The steps that a model took since `clear`: when each began, and its rows."""

    llm: rwkv_gpu.LLM
    compiled: float = 0.0
    seen: list[tuple[float, int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        engine = getattr(self.llm._driver, "_engine", None)
        if engine is None:
            return  # it is in another process
        runner = engine._runner
        submit = runner.submit

        def submitted(batch: Batch, sampling: SamplingInputs) -> PendingStep:
            self.seen.append((time.perf_counter(), batch.rows, len(batch.segments), len(batch.outputs)))
            return submit(batch, sampling)

        runner.submit = submitted  # type: ignore[method-assign]

    def clear(self) -> None:
        """A round begins."""
        self.seen = []
        self.compiled = self._recording

    @property
    def _recording(self) -> float:
        engine = getattr(self.llm._driver, "_engine", None)
        return 0.0 if engine is None else float(engine.compile_seconds)

    @property
    def recorded(self) -> float:
        """Seconds that recording plans took since the round began."""
        return self._recording - self.compiled

    def report(self, since: float, most: int = 12) -> str:
        """The first steps from a time on, as ms:rows/sequences/sampled, and what recording plans took in the round."""
        seen = [(1e3 * (at - since), *counts) for at, *counts in self.seen if at >= since]
        first = " ".join(f"{ms:.0f}:{rows}/{sequences}/{sampled}" for ms, rows, sequences, sampled in seen[:most])
        return f"{len(seen)} steps, recording {1e3 * self.recorded:.0f} ms, {first}"
