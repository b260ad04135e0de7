"""No exception on the driver's thread loses a request or leaves a caller waiting, at whatever line it occurs."""

import asyncio
import ctypes
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import rwkv_gpu
from rwkv_gpu.engine.request import Request
from rwkv_gpu.errors import BadInput, Closed
from rwkv_gpu.llm.driver import Driver
from tests.golden_files import OWN
from tests.llm.test_driver import Alphabet, asked, until

FILES = (os.path.join("llm", "driver.py"), os.path.join("llm", "jobs.py"))
ENDING = {"_run", "_step", "_finish", "_stop", "close"}  # the driver ends or has ended in these
MAX_UNREAD = 3  # unread events of the slow reader
PATIENCE = 60.0  # maximum seconds of an answer; without a fault it takes milliseconds


class Injected(Exception):
    """The exception that a test raises on the driver's thread."""


class Saboteur:
    """Raises once on the driver's thread, before the nth line of the driver's files; 0 means never."""

    def __init__(self, line: tuple[str, int] = ("", 0), time: int = 0) -> None:
        self.line = line
        self.left = time
        self.seen: set[tuple[str, int]] = set()  # functions and lines

    def trace(self, frame, event, _argument):
        """A trace function for `threading.settrace`."""
        code = frame.f_code
        if not code.co_filename.endswith(FILES) or code.co_name in ENDING:
            return None
        if event == "line":
            here = code.co_name, frame.f_lineno
            self.seen.add(here)
            if here == self.line and self.left:
                self.left -= 1
                if not self.left:
                    raise Injected(f"{here}")
        return self.trace


class Picky(Alphabet):
    """An engine that refuses prompts of two tokens."""

    def add(self, request):
        if len(request.ids) == 2:
            raise Injected("refused")
        return super().add(request)


def outcome(function):
    """Returns the result of a call: a value, or the exception."""
    try:
        return function()
    except Injected as error:
        return error


def whole(answer):
    return answer.wait().text


def slowly(answer):
    """Reads only after the request was paused; after half a second if it never is."""
    for _ in range(500):
        if answer._items.qsize() > MAX_UNREAD:
            break
        time.sleep(0.001)
    return whole(answer)


def left_after(answer, events):
    text = "".join(next(answer).text for _ in range(events))
    answer.close()
    return text


def pieces(_engine):
    for _ in range(3):
        yield
    return "worked"


def scene(driver):
    """Runs several callers. Returns their results, and the results expected without a fault."""
    calls = [
        (lambda: whole(asked(driver, 5)), "abcde"),
        (lambda: whole(asked(driver, 20, stop=("cd",))), "ab"),
        (lambda: slowly(asked(driver, 20, max_unread=MAX_UNREAD)), "abcdefghijklmnopqrst"),
        (lambda: left_after(asked(driver, 10**6), 2), "ab"),
        (lambda: left_after(asked(driver, 10**6), 0), ""),
        (lambda: driver.call(lambda _: "called"), "called"),
        (lambda: driver.work(pieces), "worked"),
    ]
    pool = ThreadPoolExecutor(len(calls))
    futures = [pool.submit(outcome, call) for call, _ in calls]
    got = [future.result(PATIENCE) for future in futures]
    pool.shutdown()
    return got, [right for _, right in calls]


def sabotage(saboteur):
    """Runs the calls with a fault on the thread, and checks the state afterwards."""
    threading.settrace(saboteur.trace)
    try:
        driver = Driver(engine := Alphabet())
    finally:
        threading.settrace(None)
    got, right = scene(driver)
    saboteur.left = 0
    assert whole(asked(driver)) == "abcde", "others are answered afterwards"
    assert driver.call(lambda _: "called") == "called"
    until(lambda: not (driver._numbers or driver._listeners or engine.running))
    driver.close()
    assert engine.closed.is_set()
    failed = [one for one in got if isinstance(one, Injected)]
    assert len(failed) <= 1, "one exception ends one request at most"
    assert all(one == should for one, should in zip(got, right, strict=True) if not isinstance(one, Injected))


@pytest.mark.parametrize("time", [1, 4])
def test_an_exception_before_any_line_of_the_thread_ends_one_request_at_most(time):
    watcher = Saboteur()
    sabotage(watcher)
    assert {"_do_jobs", "_advance", "_pass_on", "_inform", "_forget", "add", "end", "begin", "advance"} <= {
        function for function, _ in watcher.seen
    }
    for line in sorted(watcher.seen):
        sabotage(Saboteur(line, time))


@pytest.mark.parametrize("method", ["add", "stop", "abort", "pause", "resume"])
def test_an_exception_for_one_request_ends_only_that_request(method):
    engine = Alphabet(pause=0.0005)
    driver = Driver(engine)
    inner, failures = getattr(engine, method), []

    def failing(number, *more):
        if not failures:
            failures.append(number)
            raise Injected(method)
        return inner(number, *more)

    setattr(engine, method, failing)
    got, right = scene(driver)
    assert failures
    assert [one == should for one, should in zip(got, right, strict=True)].count(False) <= 1
    assert whole(asked(driver)) == "abcde"
    until(lambda: not (driver._numbers or driver._listeners or engine.running))
    driver.close()


class Deaf:
    """A listener that raises in every call."""

    def on_update(self, _update):
        raise Injected("deaf")

    overflows = on_update
    fail = on_update


def test_a_listener_that_raises_on_failure_ends_only_its_request():
    driver = Driver(engine := Picky())
    driver.submit(Request([1]), Deaf())
    driver.submit(Request([1, 2]), Deaf())
    assert whole(asked(driver)) == "abcde"
    until(lambda: not (driver._numbers or driver._listeners or engine.running))
    driver.submit(Request([1]), Deaf())
    driver.close()
    assert engine.closed.is_set()


@pytest.mark.parametrize("kind", [Injected, MemoryError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("busy", [False, True])
def test_an_exception_forced_into_the_thread_leaves_no_caller_waiting(kind, busy):
    """Exceptions that request the end of a thread end it. All waiting and later callers then get an error."""
    if sys.gettrace() is not None:
        pytest.skip("a traced call repeats its first instruction until the other thread takes the exception")
    driver = Driver(Alphabet(pause=0.001))
    others = [asked(driver, 10**6) for _ in range(3 * busy)]
    if busy:
        next(others[0])
    else:
        time.sleep(0.01)  # it sleeps
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(driver._thread.ident), ctypes.py_object(kind))
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(lambda: whole(asked(driver))), pool.submit(lambda: driver.call(lambda _: "called"))]
        ends = [call.exception(PATIENCE) for call in calls]
    driver.close()
    for other in others:
        with pytest.raises((kind, Closed)):
            other.wait()
    assert all(end is None or isinstance(end, kind | Closed) for end in ends)
    if not issubclass(kind, Exception):
        with pytest.raises(Closed, match=f"ended by {kind.__name__}; load it again"):
            asked(driver)


def test_a_callback_that_raises_system_exit_ends_its_own_request_only():
    """A SystemExit in a callback does not reach any thread of the model."""

    def leave(kind):
        def function(*_):
            raise kind

        return function

    class Own(BaseException):
        """An exception of a library, such as of a test runner."""

    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu", sequences=2) as llm:
        for kind in (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Own):
            other = llm.stream("the sea", max_tokens=40)
            with pytest.raises(BadInput, match=f"the logits processor function failed: {kind.__name__}"):
                llm.generate("hello", max_tokens=3, logits_processor=leave(kind))
            with pytest.raises(BadInput, match=f"the progress callback raised {kind.__name__}"):
                llm.perplexity("the sea is", progress=leave(kind))
            assert len(other.wait().tokens) == 40
