"""The one thread that drives an engine. Calls from any thread come to it as jobs, which it runs between steps.

It sleeps while nothing runs. A caller who waits can be interrupted at any moment, also during a step.
What goes wrong with a job or a listener ends that request alone. Only an exception out of `Engine.step` ends the
driver, as does one that asks a thread to end: then all who wait get it.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from ..engine.engine import Activity, Engine
from ..engine.request import Request, Update
from ..errors import Closed, Forked, QueueFull
from .exchange import Exchange, StateExchange
from .jobs import Job, Work

T = TypeVar("T")
GATHERING = 0.01  # seconds that a step waits at most for requests that come together
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


class Driver:
    """Owns the engine. `submit`, `call` and `work` may be called from any thread; `cancel` even by the collector.

    At most `most_requests` run and wait at a time: more are refused.
    """

    def __init__(
        self, engine: Engine, most_requests: int = MOST_REQUESTS, states: "StateExchange | None" = None
    ) -> None:
        self._engine = engine
        self._exchange = None if states is None else Exchange(engine, states, self._put, self.clock)
        self._most_requests = most_requests
        self._process = os.getpid()  # a forked one has no such thread
        # What is first in these queues stays there until it is done, so that an exception from outside loses nothing.
        self._jobs: deque[Job] = deque()
        self._works: deque[Work] = deque()
        self._updates: deque[Update] = deque()  # of the last step, not yet passed on
        self._wake: SimpleQueue[None] = SimpleQueue()  # an item for each new job: the thread sleeps on it
        self._expects = False  # whether more requests come at this moment
        self._stepped = threading.Event()  # a step since the last `wake`
        self._numbers: dict[Listener, int] = {}  # of the requests that run or wait; 0 until the engine has it
        self._listeners: dict[int, Listener] = {}  # by number
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

    @property
    def activity(self) -> Activity:
        """What the engine has at the moment; never waits for a step."""
        return self._engine.activity

    def check_process(self) -> None:
        """Raises `Forked` where nobody would ever answer."""
        if not self.here:
            raise Forked

    def submit(self, request: Request, listener: Listener, *, wake: bool = True) -> None:
        """Adds a request to those that run; the listener gets all that happens to it. Raises where it is refused.

        Without `wake`, the thread expects more until `wake`: who submits several at a time fills a step with them.
        """
        self.check_process()
        sequence = self._engine.accept(request)
        # Only states with the adapters of the load are exchanged.
        exchange = self._exchange if self._exchange is not None and request.keep and not sequence.family else None

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
            if len(self._numbers) >= self._most_requests and self._end is None:
                raise QueueFull(
                    f"{len(self._numbers):,} requests run or wait for this model, and no more may; "
                    "ask again later, or load it with a larger max_requests"
                )
            self._check_open()
            self._numbers[listener] = 0
            self._expects = not wake
            self._put(Job(add, fail), wake=wake)

    def wake(self, patience: float = 0.0) -> None:
        """Has the thread begin with what was submitted without waking it.

        With `patience` more is to come, and the caller waits so many seconds for a step with what is there: who goes on
        computing keeps the interpreter's lock from the thread, which needs it many times for a step.
        """
        self._expects = patience > 0
        self._stepped.clear()
        self._wake.put(None)
        if patience:
            self._stepped.wait(patience)

    def cancel(self, listener: Listener, tokens: int = 0) -> None:
        """Ends a request after so many of its new tokens. Harmless where it has ended."""

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
        """Lets a request go on that was paused since its reader was behind. Harmless where it has ended."""

        def resume() -> None:
            number = self._numbers.get(listener)
            if number:
                self._engine.resume(number)

        self._put(Job(resume, lambda error: self._fail(listener, error)))

    def call(self, function: Callable[[Engine], T]) -> T:
        """What a function of the engine gives, once it was called between two steps."""

        def pieces(engine: Engine) -> Generator[None, None, T]:
            yield
            return function(engine)

        return self.work(pieces)

    def work(self, pieces: Callable[[Engine], Generator[None, None, T]]) -> T:
        """What a generator returns, run from piece to piece between steps; closed where the caller is interrupted."""
        done = self.begin(pieces)
        try:
            return wait(lambda patience: done.result(patience))
        except BaseException:
            done.cancel()
            raise

    def begin(self, pieces: Callable[[Engine], Generator[None, None, T]]) -> "Future[T]":
        """The same without waiting. Who cancels what it gives ends the generator before its next piece."""
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
        """Ends all requests and the thread, and gives back all memory; whoever waits gets `Closed`.

        It waits for the step that runs, for so many seconds at most where that is given. In a forked process it does
        nothing: all of it belongs to the other one.
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
        """Gives the store all states of conversations that it lacks, until that moment by `time.monotonic`."""
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
                with suppress(Exception):  # from outside, between two lines: the queues still have what is not done
                    self._do_jobs()
                    self._advance()
                    self._step()
                    self._pass_on()
        except BaseException as error:  # noqa: BLE001  it goes to all who wait
            self._stop(Closed(f"the model's thread was ended by {type(error).__name__}; load it again"))
        self._finish()

    def _do_jobs(self) -> None:
        """All that were put; sleeps until there is one where nothing else is to be done."""
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
            except Exception as error:  # noqa: BLE001  it ends this request
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
        """One step of the engine. What it raises leaves the engine in a state that nobody knows, so it ends all."""
        try:
            if self._engine.busy:
                self._updates.extend(self._engine.step())
        except Exception as error:  # noqa: BLE001  it goes to all who wait
            self._stop(error)
        self._stepped.set()

    def _pass_on(self) -> None:
        """Gives the updates of a step to their listeners. What goes wrong with one of them ends its request."""
        while self._updates:
            update = self._updates[0]
            listener = self._listeners.get(update.id)
            try:
                self._inform(listener, update)
                self._updates.popleft()
            except Exception as error:  # noqa: BLE001  it goes to the listener; the others go on
                if self._updates and self._updates[0] is update:
                    self._updates.popleft()
                if listener is not None:
                    self._fail(listener, error)

    def _inform(self, listener: Listener | None, update: Update) -> None:
        if listener is None:
            self._engine.abort(update.id)  # nobody reads it
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
        """Ends a request, and tells its reader why."""
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
        """Tells all who wait, and closes the engine."""
        assert self._end is not None
        waiting = [*(job.fail for job in self._jobs), *(work.fail for work in self._works)]
        for fail in [*waiting, *(listener.fail for listener in [*self._numbers])]:
            with suppress(Exception):  # one who cannot be told must not keep the others from it
                fail(self._end)
        self._engine.close()


def wait(get: Callable[[float | None], T]) -> T:
    """What `get` gives, which raises TimeoutError or Empty where it is not there yet."""
    while True:
        try:
            return get(PATIENCE)
        except (TimeoutError, Empty):
            continue
