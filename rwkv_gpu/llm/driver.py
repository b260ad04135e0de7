"""The single thread that drives an engine. Other threads send it jobs, which it runs between steps.

It sleeps while there is nothing to do. A waiting caller can be interrupted at any time, also during a step. An error in
a job or listener ends only its request. The driver itself ends only by an exception from `Engine.step`, or by one that
asks threads to end; every waiting caller then gets that error.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from ..engine.engine import Activity, Engine
from ..engine.request import Request, Update
from ..errors import Closed, Forked, QueueFull
from .exchange import Exchange, StateExchange
from .jobs import Job, Work

T = TypeVar("T")
GATHERING = 0.01  # maximum seconds that a step waits for requests that arrive together
MAX_REQUESTS = 4096  # running and waiting requests
# Seconds of one wait. Windows cannot interrupt a wait; elsewhere a signal does, unless it comes just before the wait.
PATIENCE = 0.1 if os.name == "nt" else 0.5


class Listener(Protocol):
    """Receives the updates of a request. Called on the driver's thread, so it must be quick."""

    def on_update(self, update: Update) -> int | None:
        """Handles an update. May return a count of tokens: the answer is truncated to it and ends, as by a stop id."""

    def overflows(self) -> bool:
        """Returns True once if the reader is so far behind that the request must pause until `Driver.resume`."""

    def fail(self, error: BaseException) -> None:
        """Ends the updates with an error."""


class RunningTime:
    """A clock that stands still while the process is suspended, as by Ctrl-Z."""

    def __init__(self) -> None:
        self._state: tuple[float | None, float] = None, 0.0  # when it was stopped, and seconds left out; read at once

    def __call__(self) -> float:
        """Seconds since an arbitrary moment."""
        stopped, left_out = self._state
        return (time.perf_counter() if stopped is None else stopped) - left_out

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Leaves out the time of the block."""
        began, (_, left_out) = time.perf_counter(), self._state
        self._state = began, left_out
        try:
            yield
        finally:
            self._state = None, left_out + time.perf_counter() - began


RUNNING_TIME = RunningTime()  # one for the process, which is suspended as a whole


class Driver:
    """Owns the engine.

    `submit`, `call` and `work` may be called from any thread; `cancel` also from the garbage collector.

    At most `max_requests` run and wait at the same time; more are refused.
    """

    def __init__(self, engine: Engine, max_requests: int = MAX_REQUESTS, states: "StateExchange | None" = None) -> None:
        self._engine = engine
        self._exchange = None if states is None else Exchange(engine, states, self._put, self.clock)
        self._max_requests = max_requests
        self._process = os.getpid()  # a forked process lacks the thread
        # The first item of these queues stays until it is done, so that an exception from outside loses nothing.
        self._jobs: deque[Job] = deque()
        self._works: deque[Work] = deque()
        self._updates: deque[Update] = deque()  # updates of the last step, not delivered yet
        self._wake: SimpleQueue[None] = SimpleQueue()  # an item for each new job; the thread sleeps on it
        self._expects = False  # whether more requests are about to come
        self._stepped = threading.Event()  # a step has run since the last `wake`
        self._numbers: dict[Listener, int] = {}  # ids of running and waiting requests; 0 until added to the engine
        self._listeners: dict[int, Listener] = {}  # by id
        self._gate = threading.RLock()  # no job is queued after closing; reentrant, as the garbage collector may close
        self._end: BaseException | None = None  # reason for the end
        self._thread = threading.Thread(target=self._run, name="rwkv-gpu", daemon=True)
        self._thread.start()

    def clock(self) -> float:
        """Time in seconds, excluding plan recording, shader compilation, and suspension of the process."""
        return RUNNING_TIME() - self._engine.compile_seconds

    @property
    def here(self) -> bool:
        """True if this process has the thread; a forked process does not."""
        return os.getpid() == self._process

    @property
    def activity(self) -> Activity:
        """Current load of the engine; never waits for a step."""
        return self._engine.activity

    def check_process(self) -> None:
        """Raises `Forked` in a forked process, where a call would never return."""
        if not self.here:
            raise Forked

    def submit(self, request: Request, listener: Listener, *, wake: bool = True) -> None:
        """Adds a request; the listener gets all its updates. Raises if the request is refused.

        Without `wake`, the thread waits for more requests until `wake` is called, so that several fill one step.
        """
        self.check_process()
        sequence = self._engine.accept(request)
        # Only states with the default adapters are exchanged.
        exchange = (
            self._exchange
            if self._exchange is not None and request.keep and not (sequence.family or request.salt.once)
            else None
        )

        def fail(error: BaseException) -> None:
            self._fail(listener, error)

        def begin() -> None:
            if self._numbers.get(listener) != 0:
                return
            number = self._engine.add(sequence)
            self._numbers[listener] = number
            self._listeners[number] = listener
            if exchange is not None:
                exchange.began(listener, number, sequence)

        def add() -> None:
            waits = exchange is not None and self._numbers.get(listener) == 0
            if exchange is None or not waits or not exchange.fetch(listener, sequence, begin, fail):
                begin()

        with self._gate:
            if len(self._numbers) >= self._max_requests and self._end is None:
                raise QueueFull(
                    f"{len(self._numbers):,} requests run or wait for this model, which is the limit; "
                    "ask again later, or load it with a larger max_requests"
                )
            self._check_open()
            self._numbers[listener] = 0
            self._expects = not wake
            self._put(Job(add, fail), wake=wake)

    def wake(self, patience: float = 0.0) -> None:
        """Starts the requests that were submitted without waking the thread.

        With `patience`, more requests follow: the caller waits up to that many seconds for a step with the present
        ones. It must not compute meanwhile, because the thread needs the interpreter lock often in a step.
        """
        self._expects = patience > 0
        self._stepped.clear()
        self._wake.put(None)
        if patience:
            self._stepped.wait(patience)

    def cancel(self, listener: Listener, tokens: int = 0) -> None:
        """Ends a request after `tokens` new tokens. Does nothing if it has ended."""

        def end() -> None:
            number = self._numbers.get(listener)
            if number and tokens:
                self._engine.stop(number, tokens)
            elif number:
                self._engine.abort(number)
            if number and self._exchange is not None:
                self._exchange.export(number)
            self._forget(listener)

        self._put(Job(end, lambda _: self._forget(listener)))

    def resume(self, listener: Listener) -> None:
        """Resumes a request that was paused for a slow reader. Does nothing if it has ended."""

        def resume() -> None:
            number = self._numbers.get(listener)
            if number:
                self._engine.resume(number)

        self._put(Job(resume, lambda error: self._fail(listener, error)))

    def call(self, function: Callable[[Engine], T]) -> T:
        """Calls a function of the engine between two steps and returns its result."""

        def pieces(engine: Engine) -> Generator[None, None, T]:
            yield
            return function(engine)

        return self.work(pieces)

    def work(self, pieces: Callable[[Engine], Generator[None, None, T]]) -> T:
        """Runs a generator between steps, one piece at a time, and returns its result.

        Closes it if the caller is interrupted.
        """
        done = self.begin(pieces)
        try:
            while not done.done():
                with suppress(TimeoutError):
                    done.exception(PATIENCE)
            return done.result()
        except BaseException:
            done.cancel()
            raise

    def begin(self, pieces: Callable[[Engine], Generator[None, None, T]]) -> "Future[T]":
        """Like `work`, but returns a future. Cancelling it ends the generator before its next piece."""
        self.check_process()
        done: Future[T] = Future()
        work = Work(pieces(self._engine), done)

        def begin() -> None:
            if work not in self._works:
                self._works.append(work)

        with self._gate:
            self._check_open()
            self._put(Job(begin, work.fail))
        return done

    def close(self, patience: float | None = None) -> None:
        """Ends all requests and the thread, and frees all memory. Waiting callers get `Closed`.

        Waits for the running step, at most `patience` seconds if given. In a forked process it does nothing, since
        everything belongs to the other process.
        """
        if not self.here:
            return
        with self._gate:
            if self._end is None:
                self._end = Closed("the model was closed; load it again")
                self._wake.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(patience)

    def push_states(self, end: float) -> None:
        """Sends conversation states that the store lacks, until the deadline `end` (by `time.monotonic`)."""
        if self._exchange is not None:
            exchange = self._exchange
            self.work(lambda _: exchange.push(end))

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end.with_traceback(None)

    def _put(self, job: Job, *, wake: bool = True) -> None:
        self._jobs.append(job)
        if wake:
            self._wake.put(None)

    # ---------------------------------------------------------------- on the thread

    def _run(self) -> None:
        try:
            while self._end is None:
                # An exception raised from outside, between two lines: unfinished work is still in the queues.
                with suppress(Exception):
                    self._do_jobs()
                    self._advance()
                    self._step()
                    self._pass_on()
        except BaseException as error:  # noqa: BLE001  delivered to every waiting caller
            self._stop(Closed(f"the model's thread was ended by {type(error).__name__}; load it again"))
        self._finish()

    def _do_jobs(self) -> None:
        """Runs all queued jobs. Sleeps until there is one if nothing else is to be done."""
        if not (self._jobs or self._works or self._updates or self._engine.busy):
            due = None if self._exchange is None else self._exchange.due
            with suppress(Empty):
                self._wake.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
        elif self._expects:
            try:
                self._wake.get(timeout=GATHERING)
            except Empty:
                self._expects = False
        while not self._wake.empty():
            self._wake.get()
        while self._jobs:
            job = self._jobs[0]
            try:
                job.run()
            except Exception as error:  # noqa: BLE001  ends this request
                job.fail(error)
            finally:
                self._jobs.popleft()
        if self._exchange is not None:
            self._exchange.begin_overdue()

    def _advance(self) -> None:
        if self._works:
            if self._works[0].advance():
                self._works.rotate(-1)
            else:
                self._works.popleft()

    def _step(self) -> None:
        """Runs one step. An exception leaves the engine in an unknown state, so it ends all requests."""
        try:
            if self._engine.busy:
                self._updates.extend(self._engine.step())
        except Exception as error:  # noqa: BLE001  delivered to every waiting caller
            self._stop(error)
        self._stepped.set()

    def _pass_on(self) -> None:
        """Delivers the updates of a step to their listeners. An error in a listener ends its request."""
        while self._updates:
            update = self._updates[0]
            listener = self._listeners.get(update.id)
            try:
                self._inform(listener, update)
                self._updates.popleft()
            except Exception as error:  # noqa: BLE001  delivered to the listener; the others continue
                if self._updates and self._updates[0] is update:
                    self._updates.popleft()
                if listener is not None:
                    self._fail(listener, error)

    def _inform(self, listener: Listener | None, update: Update) -> None:
        if listener is None:
            self._engine.abort(update.id)  # nothing reads it any more
            return
        if self._exchange is not None:
            self._exchange.follow(update)
        tokens = listener.on_update(update)
        if tokens is not None:
            self._engine.stop(update.id, tokens)
        elif listener.overflows():
            self._engine.pause(update.id)
        if tokens is not None or update.finish_reason is not None:
            if update.finish_reason != "error" and self._exchange is not None:
                self._exchange.export(update.id)
            self._forget(listener)

    def _fail(self, listener: Listener, error: BaseException) -> None:
        """Ends a request and reports the error to its reader."""
        try:
            number = self._numbers.get(listener)
            if number:
                self._engine.stop(number, 0)
        finally:
            self._forget(listener)
            listener.fail(error)

    def _forget(self, listener: Listener) -> None:
        number = self._numbers.get(listener)
        if number is not None:
            self._listeners.pop(number, None)
            self._numbers.pop(listener, None)
            if self._exchange is not None:
                self._exchange.forget(listener, number)

    def _stop(self, reason: BaseException) -> None:
        with self._gate:
            self._end = self._end or reason

    def _finish(self) -> None:
        """Notifies all waiting callers, and closes the engine."""
        assert self._end is not None
        waiting = [*(job.fail for job in self._jobs), *(work.fail for work in self._works)]
        for fail in [*waiting, *(listener.fail for listener in [*self._numbers])]:
            with suppress(Exception):  # a failing listener must not block the others
                fail(self._end)
        self._engine.close()


def wait(items: "SimpleQueue[T]") -> T:
    """Returns the next item of a queue; a signal interrupts it."""
    while True:
        with suppress(Empty):
            return items.get(timeout=PATIENCE)
