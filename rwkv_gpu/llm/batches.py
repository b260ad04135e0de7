"""Many answers at a time: some are always asked for ahead of the one that is waited for."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..errors import QueueFull
from .completion import Completion
from .generation import AsyncGeneration, Generation

T = TypeVar("T")
AHEAD = 8  # times as many as run at a time, so that long answers do not hold up those behind them


def wait_all(
    start: Callable[[T], Generation],
    items: Sequence[T],
    sequences: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Completion]:
    """An answer for each item, in order. `progress` gets how many are done, and of how many."""
    running: deque[Generation] = deque()
    done: list[Completion] = []
    waiting = deque(items)
    try:
        while len(done) < len(items):
            _fill(running, start, waiting, sequences)
            done.append(running[0].wait())
            running.popleft()
            if progress is not None:
                progress(len(done), len(items))
    finally:
        for generation in running:
            generation.close()
    return done


async def await_all(start: Callable[[T], AsyncGeneration], items: Sequence[T], sequences: int) -> list[Completion]:
    """The same for asyncio."""
    running: deque[AsyncGeneration] = deque()
    done: list[Completion] = []
    waiting = deque(items)
    try:
        while len(done) < len(items):
            _fill(running, start, waiting, sequences)
            done.append(await running[0].wait())
            running.popleft()
    finally:
        for generation in running:
            generation.close()
    return done


def grouped(answers: Sequence[Completion], n: int) -> list[list[Completion]]:
    """Lists of n."""
    return [[*answers[at : at + n]] for at in range(0, len(answers), n)]


R = TypeVar("R", Generation, AsyncGeneration)


def _fill(running: "deque[R]", start: Callable[[T], R], waiting: "deque[T]", sequences: int) -> None:
    """Starts as many as may run ahead, or as many as the model takes."""
    while waiting and len(running) < AHEAD * sequences:
        try:
            running.append(start(waiting[0]))
        except QueueFull:
            if not running:
                raise
            return
        waiting.popleft()
