"""The thread that runs an engine: it serves any thread, sleeps when idle, and leaves no caller waiting."""

import gc
import os
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from queue import Empty

import pytest

from rwkv_gpu.engine.request import Request, Update
from rwkv_gpu.engine.sampling import Sampled
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.errors import BadInput, Closed, DeviceLost, QueueFull
from rwkv_gpu.llm.driver import Driver, wait
from rwkv_gpu.llm.generation import Generation
from rwkv_gpu.llm.reader import Ends, Reader
from rwkv_gpu.text.base import Detokenizer
from tests.process import PATIENCE, posix, until


class Letters:
    """A minimal tokenizer for a reader: each id is its character."""

    def stream(self, **_):
        return Detokenizer(lambda token: chr(token).encode(), strip_space=False, clean=False)


class Alphabet:
    """An engine that answers every request with a, b, c ..., one letter per slow step."""

    compile_seconds = 0.0

    def __init__(self, pause=0.0, breaks_after=None):
        self.delay, self.breaks_after = pause, breaks_after
        self.running, self.said, self.ended, self.steps, self.number = {}, {}, {}, 0, 0
        self.closed = threading.Event()
        self.threads = set()
        self.paused = set()
        self.pauses = self.looks = 0

    @property
    def busy(self):
        self.looks += 1
        return bool(self.running.keys() - self.paused)

    def accept(self, request):
        if not request.ids:
            raise BadInput("no tokens")
        return request

    def add(self, request):
        self.number += 1
        self.running[self.number], self.said[self.number] = request, 0
        return self.number

    def step(self):
        self.threads.add(threading.get_ident())
        time.sleep(self.delay)
        self.steps += 1
        if self.steps == self.breaks_after:
            raise DeviceLost("the device went away")
        return [self._say(number, request) for number, request in [*self.running.items()] if number not in self.paused]

    def _say(self, number, request):
        self.said[number] += 1
        over = self.said[number] == request.params.max_tokens
        if over:
            self.end(number, "length")
        said = Sampled(ord("a") + self.said[number] - 1, -1.0, ())
        return Update(number, (said,), len(request.ids), len(request.ids), 0, "length" if over else None)

    def end(self, number, reason):
        if self.running.pop(number, None):
            self.ended[number] = reason

    def pause(self, number):
        self.paused.add(number)
        self.pauses += 1

    def resume(self, number):
        self.paused.discard(number)

    def abort(self, number):
        self.end(number, "abort")

    def stop(self, number, said=None):
        self.end(number, ("stop", said))

    def close(self):
        self.closed.set()


def asked(driver, most=5, stop=(), **more):
    request = Request([1], SamplingParams(max_tokens=most))
    return Generation(driver, request, Reader(Letters(), Ends(stop)), **more)


@pytest.fixture
def driven():
    """Starts a driver for the engine, and closes it at the end."""
    drivers = []

    def make(engine):
        drivers.append(Driver(engine))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


def test_calls_from_many_threads_share_steps_and_one_thread_drives(driven):
    engine = Alphabet()
    all_asked, step = threading.Barrier(9), engine.step
    engine.step = lambda: (engine.steps or all_asked.wait(PATIENCE), step())[1]

    def text(_):
        answer = asked(driver, 10)
        all_asked.wait(PATIENCE)
        return answer.wait().text

    driver = driven(engine)
    with ThreadPoolExecutor(8) as pool:
        texts = [*pool.map(text, range(8))]
    assert texts == ["abcdefghij"] * 8
    assert len(engine.threads) == 1
    assert engine.steps <= 10 + 1, "the first step has at least one request, the second all others"


def test_requests_submitted_without_waking_begin_in_one_step(driven):
    engine = Alphabet()
    driver = driven(engine)
    answers = [asked(driver, 1, wake=False) for _ in range(3)]
    time.sleep(0.02)
    assert not engine.steps
    driver.wake()
    assert [answer.wait().text for answer in answers] == ["a"] * 3
    assert engine.steps == 1


def test_running_requests_continue_if_no_wake_comes(driven):
    engine = Alphabet(pause=0.001)
    driver = driven(engine)
    running = asked(driver, 10**6)
    until(lambda: engine.steps)
    assert asked(driver, 3, wake=False).wait().text == "abc"
    assert not driver._expects
    running.close()


def test_a_caller_who_announces_more_requests_still_gets_a_step(driven):
    engine = Alphabet()
    driver = driven(engine)
    first = [asked(driver, 1, wake=False) for _ in range(2)]
    driver.wake(patience=60)
    assert engine.steps == 1
    later = asked(driver, 1, wake=False)
    driver.wake()
    assert [answer.wait().text for answer in (*first, later)] == ["a"] * 3
    assert engine.steps == 2


def test_no_step_runs_without_requests(driven):
    engine = Alphabet()
    driver = driven(engine)
    asked(driver).wait()
    until(lambda: not driver._wake.qsize())
    steps, looks = engine.steps, engine.looks
    time.sleep(0.2)
    assert engine.steps == steps
    assert engine.looks - looks < 4  # the thread sleeps; otherwise it would look thousands of times


@pytest.fixture
def interruptible():
    """Makes the process react to Ctrl-C, even if a shell started the tests with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_when_waiting():
    """Interrupts this thread as soon as it waits for the driver's."""
    mine = threading.get_ident()

    def send():
        until(lambda: sys._current_frames()[mine].f_code is wait.__code__)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send).start()


@posix
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_reaches_a_waiting_thread_at_once_and_ends_only_its_answer(driven):
    engine = Alphabet()
    goes_on, step = threading.Event(), engine.step
    engine.step = lambda: (goes_on.wait(PATIENCE), step())[1]
    driver = driven(engine)
    other = asked(driver, 2)
    mine = asked(driver, 50)
    with pytest.raises(KeyboardInterrupt):
        interrupt_when_waiting()
        mine.wait()
    assert not engine.steps, "before the step ends"
    goes_on.set()
    assert mine.completion.finish_reason == "abort"
    assert other.wait().text == "ab"
    until(lambda: not engine.busy)


@posix
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_reaches_a_thread_that_waits_for_work_and_closes_it(driven):
    driver, ended = driven(Alphabet()), threading.Event()

    def endless(_):
        try:
            yield
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                time.sleep(0.01)
                yield
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        driver.work(endless)
    assert ended.wait(PATIENCE)


def test_a_wait_wakes_at_intervals_because_a_signal_just_before_it_does_not_end_it():
    waits = []

    class Items:
        def get(self, *, timeout):
            waits.append(timeout)
            if len(waits) < 3:
                raise Empty
            return "item"

    assert wait(Items()) == "item"
    assert len(waits) == 3 and all(0 < seconds <= 1 for seconds in waits)


def test_work_that_raises_a_timeout_ends(driven):
    def late(_):
        yield
        raise TimeoutError("late")

    with pytest.raises(TimeoutError, match="late"):
        driven(Alphabet()).work(late)


def test_steps_of_requests_run_between_parts_of_other_work(driven):
    engine = Alphabet()
    driver = driven(engine)
    answer = asked(driver, 5)

    def long(_):
        while engine.steps < 5:
            yield
        return "done"

    assert driver.work(long) == "done"
    assert answer.wait().text == "abcde"


def test_closing_ends_all_waiting_and_later_calls(driven):
    engine = Alphabet(pause=0.05)
    driver = driven(engine)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(lambda: asked(driver, 1000).wait()) for _ in range(4)]
        until(lambda: len(engine.running) == 4)
        driver.close()
        for one in waiting:
            with pytest.raises(Closed, match="closed; load it again"):
                one.result(2)
    assert engine.closed.is_set()
    with pytest.raises(Closed):
        asked(driver)
    with pytest.raises(Closed):
        driver.call(lambda _: None)
    driver.close()


def test_a_broken_engine_fails_all_requests_and_takes_no_more(driven):
    engine = Alphabet(breaks_after=3)
    driver = driven(engine)
    first, second = asked(driver, 10), asked(driver, 10)
    for one in (first, second):
        with pytest.raises(DeviceLost):
            one.wait()
    assert first.completion.finish_reason == "error"
    with pytest.raises(DeviceLost):
        asked(driver)
    assert engine.closed.wait(1)


def test_a_refused_request_raises_for_its_own_reader(driven):
    driver = driven(Alphabet())
    with pytest.raises(BadInput, match="no tokens"):
        Generation(driver, Request([]), Reader(Letters(), Ends(())))
    assert asked(driver).wait().text == "abcde"


def test_a_token_that_has_no_text_ends_its_own_answer_only(driven):
    engine = Alphabet()

    class Strict(Letters):
        def stream(self, **_):
            return Detokenizer(lambda token: {97: b"a"}[token], strip_space=False, clean=False)

    driver = driven(engine)
    other = asked(driver, 10)
    broken = Generation(driver, Request([1]), Reader(Strict(), Ends(())))
    with pytest.raises(KeyError):
        broken.wait()
    assert other.wait().text == "abcdefghij"
    assert engine.ended[2] == ("stop", 0)


def test_a_stop_string_ends_the_request_with_the_tokens_that_count(driven):
    engine = Alphabet()
    done = asked(driven(engine), 20, stop=("cd",)).wait()
    assert (done.text, done.finish_reason, len(done.tokens)) == ("ab", "stop", 4)
    until(lambda: engine.ended)
    assert engine.ended == {1: ("stop", 4)}


def test_an_answer_that_is_dropped_half_way_is_ended(driven):
    engine = Alphabet(pause=0.001)
    answer = asked(driven(engine), 10**6)
    next(answer)
    known = weakref.ref(answer)
    del answer
    gc.collect()
    assert known() is None
    until(lambda: engine.ended)
    assert not engine.busy


def test_closing_counts_tokens_read_and_wakes_a_reader_in_another_thread(driven):
    engine = Alphabet(pause=0.05)
    answer = asked(driven(engine), 10**6)
    assert next(answer).text == "a"
    assert next(answer).text == "b"
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: [event.text for event in answer])
        time.sleep(0.02)
        answer.close()
        rest = reading.result(PATIENCE)
    assert rest == [chr(ord("c") + number) for number in range(len(rest))]
    assert answer.completion.finish_reason == "abort"
    until(lambda: engine.ended)
    assert engine.ended[1] in (("stop", 2 + len(rest)), ("stop", 3 + len(rest)))
    assert [*answer] == []


def test_all_readers_of_an_answer_see_its_end(driven):
    answer = asked(driven(Alphabet(pause=0.01)), 10)
    with ThreadPoolExecutor(3) as pool:
        reading = [pool.submit(lambda: [event.text for event in answer]) for _ in range(3)]
        texts = [one.result(5) for one in reading]
    assert sorted(text for some in texts for text in some) == list("abcdefghij")


def test_an_exception_in_a_callback_ends_the_answer_and_reaches_the_caller(driven):
    engine = Alphabet()

    def refuse(done, total):
        raise InterruptedError(f"{done} of {total}")

    with pytest.raises(InterruptedError, match="1 of 1"):
        asked(driven(engine), 10**6, on_prompt=refuse).wait()
    until(lambda: engine.ended)


def test_running_and_waiting_requests_are_limited():
    engine = Alphabet(pause=0.001)
    driver = Driver(engine, max_requests=3)
    running = [asked(driver, 10**6) for _ in range(3)]
    for _ in range(2):
        with pytest.raises(QueueFull, match="3 requests run or wait.*max_requests"):
            asked(driver)
    running[0].close()
    until(lambda: engine.ended)
    assert asked(driver).wait().text == "abcde"
    assert asked(driver).wait().text == "abcde"
    with pytest.raises(QueueFull):
        [asked(driver, 10**6) for _ in range(2)]
    driver.close()


def test_refused_requests_take_no_place_in_the_queue():
    driver = Driver(Alphabet(), max_requests=1)
    for _ in range(3):
        with pytest.raises(BadInput):
            Generation(driver, Request([]), Reader(Letters(), Ends(())))
    assert asked(driver).wait().text == "abcde"
    driver.close()


def unread(answer) -> int:
    return answer._items.qsize()


def test_a_slow_reader_holds_a_bounded_number_of_events_and_loses_none(driven):
    engine = Alphabet()
    driver = driven(engine)
    slow = asked(driver, 200, max_unread=20)
    until(lambda: engine.paused)
    assert 20 < unread(slow) <= 23  # an update may bring an event and the progress of the prompt
    assert asked(driver, 100).wait().finish_reason == "length"
    assert unread(slow) <= 23, "it went on while it was paused"
    for number in range(200):
        assert next(slow).text == chr(ord("a") + number)
        assert unread(slow) <= 23
    assert slow.wait().finish_reason == "length"


def test_a_fast_reader_is_never_paused(driven):
    engine = Alphabet(pause=0.001)
    assert len(asked(driven(engine), 100, max_unread=90).wait().tokens) == 100
    assert engine.pauses == 0


def test_a_slow_reader_that_goes_away_ends_its_request(driven):
    engine = Alphabet()
    driver = driven(engine)
    slow = asked(driver, 10**6, max_unread=5)
    until(lambda: engine.paused)
    slow.close()
    until(lambda: engine.ended)
    assert not engine.busy
    assert not driver._listeners and not driver._numbers and len(driver._numbers) == 0
