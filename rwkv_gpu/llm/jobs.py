"""Work for the driver of an engine, done between steps: short jobs, and work done in pieces."""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Job:
    """A request to the driver. It may run twice if an exception from another thread interrupts it."""

    run: Callable[[], None]
    fail: Callable[[BaseException], None]  # reports an error to the waiting caller


class Work:
    """Longer work, done in pieces between steps."""

    def __init__(self, pieces: Generator[None, None, Any], done: "Future[Any]") -> None:
        self._pieces = pieces
        self._done = done

    def advance(self) -> bool:
        """Does a piece; returns True if there are more."""
        try:
            return self._advance()
        except Exception as error:  # noqa: BLE001  delivered to the waiting caller
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
        """Reports the error to the waiting caller, and frees the engine's resources that the work holds."""
        if self._awaited():
            self._done.set_exception(error)
        self._pieces.close()

    def _awaited(self) -> bool:
        """True if the result is still awaited."""
        return not self._done.done() and (self._done.running() or self._done.set_running_or_notify_cancel())
