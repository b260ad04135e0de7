"""Many answers at once: while one is awaited, later ones are already requested."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..errors import QueueFull
from .completion import Completion
from .generation import AsyncGeneration, Generation

T = TypeVar("T")
AHEAD = 8  # requested answers per running one, so that long answers do not block later ones


def wait_all(
    start: Callable[[T], Generation],
    items: Sequence[T],
    sequences: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Completion]:
    """Returns an answer for each item, in order. `progress` gets the number done, and the total."""
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
    """`wait_all` for asyncio."""
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
    """Splits a list into lists of n."""
    return [[*answers[at : at + n]] for at in range(0, len(answers), n)]


R = TypeVar("R", Generation, AsyncGeneration)


def _fill(running: "deque[R]", start: Callable[[T], R], waiting: "deque[T]", sequences: int) -> None:
    """Starts answers up to the look-ahead, or as many as the model accepts."""
    while waiting and len(running) < AHEAD * sequences:
        try:
            running.append(start(waiting[0]))
        except QueueFull:
            if not running:
                raise
            return
        waiting.popleft()
