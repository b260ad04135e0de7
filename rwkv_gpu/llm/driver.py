"""The one thread that drives an engine. Calls from any thread come to it as jobs, done between steps.

It sleeps where nothing runs, and a caller who waits can be interrupted, whatever a step is at.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from ..engine.engine import Engine
from ..engine.request import Request, Update
from ..errors import Closed, Forked, QueueFull

T = TypeVar("T")
Job = Callable[[], None]
MOST_REQUESTS = 4096  # that run or wait at a time
# Windows does not interrupt who waits without end; elsewhere a signal does.
PATIENCE = 0.1 if os.name == "nt" else None


class Listener(Protocol):
    """Gets the updates of a request. Called on the driver's thread: be quick."""

    def on_update(self, update: Update) -> int | None:
        """Takes an update; a number ends the request as by a stop id, after so many of its tokens."""

    def overflows(self) -> bool:
        """Whether its reader is so far behind that the request must pause, until `Driver.resume`. Says so once."""

    def fail(self, error: BaseException) -> None:
        """There will be no more updates."""


class Work:
    """Something longer than a job, done piece by piece between the steps of others."""

    def __init__(self, pieces: Generator[None, None, Any], done: "Future[Any]") -> None:
        self._pieces = pieces
        self._done = done

    def advance(self) -> bool:
        """Does a piece; whether there are more."""
        try:
            if self._done.cancelled():
                self._pieces.close()
                return False
            next(self._pieces)
        except StopIteration as end:
            if self._done.set_running_or_notify_cancel():
                self._done.set_result(end.value)
            return False
        except Exception as error:  # noqa: BLE001  it goes to whoever waits
            self.fail(error)
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """Whoever waits for it gets the error."""
        if self._done.set_running_or_notify_cancel():
            self._done.set_exception(error)


class Driver:
    """Owns the engine. `submit`, `call` and `work` may be called from any thread; `cancel` even by the collector.

    At most `most_requests` run and wait at a time: more are refused.
    """

    def __init__(self, engine: Engine, most_requests: int = MOST_REQUESTS) -> None:
        self._engine = engine
        self._most_requests = most_requests
        self._process = os.getpid()  # a forked one has no such thread
        self._requests = 0  # that run or wait; changed under the gate
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._works: deque[Work] = deque()
        self._listeners: dict[int, Listener] = {}
        self._numbers: dict[Listener, int] = {}
        self._gate = threading.RLock()  # no job is put after the last one; the collector may come by and close
        self._end: BaseException | None = None  # why nothing more is done
        self._thread = threading.Thread(target=self._run, name="rwkv-gpu", daemon=True)
        self._thread.start()

    def clock(self) -> float:
        """A clock in seconds that stands still while plans are recorded and shaders compiled."""
        return time.perf_counter() - self._engine.compile_seconds

    @property
    def here(self) -> bool:
        """Whether this process has the thread; one that was forked has not."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Raises `Forked` where nobody would ever answer."""
        if not self.here:
            raise Forked

    def submit(self, request: Request, listener: Listener) -> None:
        """Adds a request to those that run; the listener gets all that happens to it. Raises where it is refused."""
        self.check_process()
        sequence = self._engine.accept(request)

        def job() -> None:
            try:
                number = self._engine.add(sequence)
            except Exception as error:  # noqa: BLE001  it goes to the listener
                self._count(-1)
                listener.fail(error)
                return
            self._listeners[number] = listener
            self._numbers[listener] = number

        with self._gate:
            if self._requests >= self._most_requests and self._end is None:
                raise QueueFull(
                    f"{self._requests:,} requests run or wait for this model, and no more may; "
                    "ask again later, or load it with a larger max_requests"
                )
            self._put(job)
            self._count(1)

    def _count(self, change: int) -> None:
        with self._gate:
            self._requests += change

    def cancel(self, listener: Listener, tokens: int = 0) -> None:
        """Ends a request after so many of its new tokens. Harmless where it has ended."""

        def job() -> None:
            number = self._numbers.get(listener)
            if number is None:
                return
            if tokens:
                self._engine.stop(number, tokens)
            else:
                self._engine.abort(number)
            self._forget(number)

        self._jobs.put(job)

    def resume(self, listener: Listener) -> None:
        """Lets a request go on that was paused since its reader was behind. Harmless where it has ended."""

        def job() -> None:
            number = self._numbers.get(listener)
            if number is not None:
                self._engine.resume(number)

        self._jobs.put(job)

    def call(self, function: Callable[[Engine], T]) -> T:
        """What a function of the engine gives, once it was called between two steps."""

        def pieces(engine: Engine) -> Generator[None, None, T]:
            yield
            return function(engine)

        return self.work(pieces)

    def work(self, pieces: Callable[[Engine], Generator[None, None, T]]) -> T:
        """What a generator returns, run from piece to piece between steps; closed where the caller is interrupted."""
        self.check_process()
        done: Future[T] = Future()
        self._put(lambda: self._works.append(Work(pieces(self._engine), done)))
        try:
            return wait(lambda patience: done.result(patience))
        except BaseException:
            done.cancel()
            raise

    def close(self, patience: float | None = None) -> None:
        """Ends all requests and the thread, and gives back all memory; whoever waits gets `Closed`.

        It waits for the step that runs, for so many seconds at most where that is given. In a forked process it does
        nothing: all of it belongs to the other one.
        """
        if not self.here:
            return
        with self._gate:
            if self._end is None:
                self._end = Closed("the model was closed; load it again")
                self._jobs.put(lambda: None)  # so that the thread wakes up
        if threading.current_thread() is not self._thread:
            self._thread.join(patience)

    def _put(self, job: Job) -> None:
        with self._gate:
            if self._end is not None:
                raise self._end.with_traceback(None)
            self._jobs.put(job)

    def _run(self) -> None:
        try:
            while self._end is None:
                self._do_jobs()
                self._advance()
                if self._engine.busy:
                    self._step()
        except BaseException as error:  # noqa: BLE001  it goes to all who wait
            with self._gate:
                self._end = self._end or error
        self._finish()

    def _do_jobs(self) -> None:
        """All that were put; sleeps until there is one where nothing else is to be done."""
        idle = not self._works and not self._engine.busy
        while True:
            try:
                job = self._jobs.get(block=idle)
            except Empty:
                return
            job()
            idle = False

    def _advance(self) -> None:
        if self._works:
            work = self._works.popleft()
            if work.advance():
                self._works.append(work)

    def _step(self) -> None:
        for update in self._engine.step():
            listener = self._listeners.get(update.id)
            if listener is None:
                continue
            try:
                tokens = listener.on_update(update)
                behind = listener.overflows()
            except Exception as error:  # noqa: BLE001  it goes to the listener; the others go on
                listener.fail(error)
                tokens, behind = 0, False
            if tokens is not None:
                self._engine.stop(update.id, tokens)
            elif behind:
                self._engine.pause(update.id)
            if tokens is not None or update.finish_reason is not None:
                self._forget(update.id)

    def _forget(self, number: int) -> None:
        del self._numbers[self._listeners.pop(number)]
        self._count(-1)

    def _finish(self) -> None:
        """Tells all who wait, and closes the engine."""
        assert self._end is not None
        while not self._jobs.empty():
            self._jobs.get()()
        for listener in self._listeners.values():
            listener.fail(self._end)
        for work in self._works:
            work.fail(self._end)
        self._engine.close()


def wait(get: Callable[[float | None], T]) -> T:
    """What `get` gives, which raises TimeoutError or Empty where it is not there yet."""
    while True:
        try:
            return get(PATIENCE)
        except (TimeoutError, Empty):
            continue
