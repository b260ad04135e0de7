"""What the driver of an engine does for other threads, between the steps: short jobs, and work done piece by piece."""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Job:
    """What a thread asks of the driver. It may run twice, if an exception from outside arrives between two lines."""

    run: Callable[[], None]
    fail: Callable[[BaseException], None]  # tells whoever waits for it


class Work:
    """Something longer than a job, done piece by piece between the steps of others."""

    def __init__(self, pieces: Generator[None, None, Any], done: "Future[Any]") -> None:
        self._pieces = pieces
        self._done = done

    def advance(self) -> bool:
        """Does a piece; whether there are more."""
        try:
            return self._advance()
        except Exception as error:  # noqa: BLE001  it goes to whoever waits
            self.fail(error)
            return False

    def _advance(self) -> bool:
        if self._done.cancelled():
            self._pieces.close()
            return False
        try:
            next(self._pieces)
        except StopIteration as end:
            if self._awaited():
                self._done.set_result(end.value)
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """Whoever waits for it gets the error; what it holds of the engine is given back."""
        if self._awaited():
            self._done.set_exception(error)
        self._pieces.close()

    def _awaited(self) -> bool:
        """Whether somebody still waits for the result."""
        return not self._done.done() and (self._done.running() or self._done.set_running_or_notify_cancel())
