"""An engine whose steps a test releases one by one, to examine a request in each stage."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.process import until
from tests.server.serving import Served


class Gate:
    """Counts the steps of an engine, and lets a given number of them run."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._step = engine.step
        self._shut = False  # True if a step waits here, so that the results of the previous one are delivered
        self._allowed = threading.Semaphore(0)
        self.open = False
        self.steps = 0

    def step(self) -> Any:
        self._shut = True
        while not self.open and not self._allowed.acquire(timeout=0.01):
            pass
        self._shut = False
        found = self._step()
        self.steps += 1
        return found

    def let(self, steps: int) -> None:
        """Allows this number of further steps, and returns at once."""
        self._allowed.release(steps)

    def allow(self, steps: int) -> None:
        """Allows this number of further steps, and waits until they are done."""
        wanted = self.steps + steps
        self.let(steps)
        until(lambda: self.steps >= wanted and (self._shut or not self._engine.busy))


@contextmanager
def gate(server: Served) -> Iterator[Gate]:
    """Installs a gate before the engine of a server. It is open at the end."""
    engine = server.engine
    held = Gate(engine)
    engine.step = held.step
    try:
        yield held
    finally:
        held.open = True
        del engine.step
