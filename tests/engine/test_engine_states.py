"""Tests the engine with a model whose state is a hash of its input.

For random requests at random times, each gets the same tokens as alone, and each ends. No page leaks, and no shared
page is written.
"""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rwkv_gpu.engine.adapters import NO_ADAPTERS
from rwkv_gpu.engine.cache.config import CacheConfig
from rwkv_gpu.engine.cache.pager import Pager
from rwkv_gpu.engine.cache.prefix_index import TOKEN, key_of
from rwkv_gpu.engine.cache.states import StatePages
from rwkv_gpu.engine.cache.store import SequenceStore, WindowPages
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.request import Request, Update
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.engine.step_result import SampledRow, StepResult
from rwkv_gpu.errors import CacheFull, OutOfMemory
from rwkv_gpu.ops.sampling import FROM_SLOT
from rwkv_gpu.ops.vocabulary import PAGE

VOCABULARY, CONTEXT, SLOTS, CHUNK = 50, 3 * PAGE, 3, 40
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # other programs use the machine, too
STOP = 7


def next_token(seen) -> int:
    """Returns the token that follows these tokens."""
    return hash(tuple(seen)) % VOCABULARY


@dataclass
class Later:
    """A step whose result is computed when it is read."""

    chosen: np.ndarray
    runner: "Fake"

    def wait(self) -> StepResult:
        self.runner.under_way -= 1
        return StepResult(SampledRow.rows(self.chosen.tobytes(), len(self.chosen)), None)


class Fake:
    """A runner with pages of tokens and states of all tokens so far. The next token depends on their contents."""

    vocabulary, slots, chunk_size, context = VOCABULARY, SLOTS, CHUNK, CONTEXT
    ahead = 16
    adapters = NO_ADAPTERS
    model = None  # no encoder
    page_and_state_bytes = 1, 1

    def __init__(
        self,
        pages: int,
        checkpoints: int,
        *,
        attends: bool,
        recurs: bool,
        look_ahead: int,
        interval: int = CHUNK,
        window: int = 0,
    ) -> None:
        self.window = window
        self.cache_config = CacheConfig(CONTEXT, SLOTS, "f32", pages * PAGE, look_ahead, checkpoints, 8, interval)
        self.pager = Pager(pages, CONTEXT) if attends else None
        self.stated = (
            StatePages(self.cache_config.states, self.cache_config.history, self.cache_config.spacing)
            if recurs
            else None
        )
        # Compares pages of all tokens with pages of those that the next token attends to. Both must give the same.
        self.windowed = Pager(pages, CONTEXT, window, look_ahead)
        self.seen = np.zeros((pages, PAGE), np.int64)
        windows = {window: WindowPages(self.windowed, 1)} if window else {}
        self.store = SequenceStore(self.pager, self.stated, self.copy, windows)
        self.memory = np.zeros((pages, PAGE), np.int64)
        self.states: list[tuple[int, ...]] = [()] * self.cache_config.states
        self.said = [0] * SLOTS
        self.under_way = self.max_under_way = 0

    def copy(self, copies, window: int = 0) -> None:
        memory = self.seen if window else self.memory
        for copy in copies:
            memory[copy.target] = memory[copy.source]

    def prepare(self, batch):
        return self.store.prepare(batch)

    def remember(self, slot, ids, params) -> None:
        """Does nothing: penalties are not used."""

    def forget_row(self, slot, length) -> None:
        """Does nothing: there is no head."""

    breaks: Exception | None = None  # what the next step raises

    def submit(self, batch, draws) -> Later:
        assert batch.rows <= CHUNK
        if self.breaks is not None:
            error, self.breaks = self.breaks, None
            raise error
        self.under_way += 1
        self.max_under_way = max(self.max_under_way, self.under_way)
        read = {s.slot: self.states[s.source] if s.start else () for s in batch.segments}
        seen = {}
        for s in batch.segments:
            ids = [
                self.said[id ^ FROM_SLOT] if id & FROM_SLOT else int(id)
                for id in batch.ids[s.first :][: s.count].tolist()
            ]
            if self.stated is not None:
                assert self.stated.pool.holders(s.target) == 1, "wrote a state that others hold"
                assert len(read[s.slot]) == s.start
                self.states[s.target] = seen[s.first + s.count - 1] = (*read[s.slot], *ids)
            if self.pager is not None:
                for position, id in enumerate(ids, s.start):
                    page = s.pages[position // PAGE]
                    assert self.pager.pool.holders(page) == 1, "wrote into a page that others hold"
                    self.memory[page, position % PAGE] = id
                held = self.memory[list(s.pages)].reshape(-1)[: s.start + s.count].tolist()
                assert self.stated is None or tuple(held) == seen[s.first + s.count - 1]
                for window, table in s.windows:
                    self.look_back(s, window, table, held)
                seen[s.first + s.count - 1] = tuple(held)
        chosen = np.zeros((len(batch.outputs), 4), np.uint32)
        for row, (output, draw) in enumerate(zip(batch.outputs, draws.rows, strict=True)):
            assert draw["tokens"] == len(seen[output]), "a draw counts other tokens than the sequence has"
            chosen[row, 0] = self.said[draw["slot"]] = next_token(seen[output])
        return Later(chosen, self)

    def look_back(self, s, window, table, whole) -> None:
        """Checks that every row sees the same values in its window as if none had been released."""
        for position in s.positions:
            page = table[position // PAGE]
            assert self.windowed.pool.holders(page) == 1, "wrote into a page that others hold"
            self.seen[page, position % PAGE] = whole[position]
        for position in s.positions:
            first = max(0, position + 1 - window)
            found = [self.seen[table[n // PAGE], n % PAGE] for n in range(first, position + 1)]
            assert found == whole[first : position + 1]

    def read_state(self, slot: int) -> dict[str, np.ndarray]:
        """Returns all tokens of a sequence, as stored in its pages or its state."""
        length = self.store.length(slot)
        if self.stated is not None:
            return {"tokens": np.array(self.states[self.store.state(slot)])}
        table = self.pager.table(slot)
        return {"tokens": np.array([self.memory[table[n // PAGE], n % PAGE] for n in range(length)], np.int64)}

    def fitted(self, length: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        return arrays if len(arrays["tokens"]) == length else None

    def write_state(self, slot: int, length: int, arrays: dict[str, np.ndarray]) -> None:
        """Like real runners, restores only the positions that the next row of a window layer sees."""
        self.store.begin(slot, length, length if 0 < self.window <= length else 0)
        tokens = arrays["tokens"].tolist()
        if self.stated is not None:
            self.states[self.store.state(slot)] = tuple(tokens)
        if self.pager is not None:
            table, held = self.pager.table(slot), self.windowed.held(slot)
            for position, token in enumerate(tokens):
                self.memory[table[position // PAGE], position % PAGE] = token
                if self.window and position // PAGE >= held.first:
                    page = held.pages[position // PAGE - held.first]
                    self.seen[page, position % PAGE] = token if position > length - self.window else -1

    def close(self) -> None:
        """Does nothing: there is no memory to free."""


def alone(ids: list[int], most: int, keep: int | None = None) -> list[int]:
    """Returns the answer of a request that runs alone. With `keep`, a full context loses its middle."""
    seen, said = list(ids), list[int]()
    while len(said) < most and (keep is not None or len(seen) < CONTEXT):
        if len(seen) > CONTEXT:
            del seen[keep : keep + (CONTEXT - keep + 1) // 2]
        token = next_token(seen)
        if token == STOP:
            break
        seen.append(token)
        said.append(token)
    return said


@pytest.mark.parametrize("look_ahead", [0, 1, 2, 5])
def test_look_ahead_limits_the_steps_in_flight(look_ahead):
    runner = Fake(8, 0, attends=True, recurs=True, look_ahead=look_ahead)
    engine = Engine(runner)
    engine.add(Request([1, 2, 3], SamplingParams(max_tokens=20)))
    news = [engine.step() for _ in range(look_ahead + 1)]
    assert [len(update.sampled) for updates in news for update in updates][-1] == 1
    assert runner.under_way == look_ahead
    while engine.busy:
        engine.step()
    assert (runner.under_way, runner.max_under_way) == (0, look_ahead + 1)


@pytest.mark.parametrize("look_ahead", [0, 2, 5])
@pytest.mark.parametrize("most", [1, 2, 7])
def test_the_last_token_of_a_full_answer_is_never_fed(look_ahead, most):
    runner = Fake(8, 0, attends=True, recurs=True, look_ahead=look_ahead)
    engine, rows, submit = Engine(runner), [], runner.submit
    runner.submit = lambda batch, sampling: rows.append(batch.rows) or submit(batch, sampling)
    engine.add(Request([1, 2, 3], SamplingParams(max_tokens=most)))
    while engine.busy:
        engine.step()
    assert sum(rows) == 3 + most - 1


@pytest.mark.parametrize(("attends", "recurs"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("tokens", [0, 1, 3, 6])
def test_a_stopped_answer_keeps_only_the_requested_tokens(attends, recurs, tokens):
    """Tokens computed after the stop are discarded."""
    runner = Fake(8, 4, attends=attends, recurs=recurs, look_ahead=3)
    engine, prompt, sampled = Engine(runner), list(range(1, 31)), []
    engine.prefixes._max_bytes = 1000
    id = engine.add(Request(prompt, SamplingParams(max_tokens=40), keep=True))
    while len(sampled) < 6:
        sampled += [one.token for update in engine.step() for one in update.sampled]
    engine.stop(id, tokens)
    while engine.busy:
        engine.step()
    answer = [*prompt, *sampled[:tokens]]
    stored = [entry.key for entry in engine.prefixes.entries]
    longest = max(map(len, stored)) // TOKEN
    assert longest <= len(answer)
    assert all(key_of(answer).startswith(key) for key in stored)
    assert longest == len(answer) or recurs or tokens == 6  # the last one sampled may not be fed yet


def test_an_aborted_answer_stores_no_more_than_its_prompt():
    runner = Fake(8, 0, attends=True, recurs=False, look_ahead=0)
    engine = Engine(runner)
    engine.prefixes._max_bytes = 1000
    id, sampled = engine.add(Request([1] * (PAGE - 5), SamplingParams(max_tokens=100))), 0
    while sampled < 20:
        sampled += sum(len(update.sampled) for update in engine.step())
    engine.abort(id)
    assert len(engine.prefixes) == 0


@pytest.mark.parametrize(("attends", "recurs"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("at", ["submit", "wait"])
def test_after_a_failed_step_no_stored_state_is_used(monkeypatch, attends, recurs, at):
    """A failed step may have written to any place, so this one overwrites everything."""
    runner = Fake(8, 4, attends=attends, recurs=recurs, look_ahead=0)
    engine, prompt = Engine(runner), list(range(1, 31))
    engine.prefixes._max_bytes = 1000

    def asks(ids: list[int]) -> Update:
        engine.add(Request(ids, SamplingParams(max_tokens=5), keep=True))
        while engine.busy:
            last = engine.step()
        return last[-1]

    asks(prompt)
    assert asks(prompt).reused > 0
    if at == "submit":
        runner.breaks = OutOfMemory("no more")
    else:
        monkeypatch.setattr(Later, "wait", failing)
    assert asks([9, 8]).finish_reason == "error"
    monkeypatch.undo()
    runner.memory[:] = 40
    runner.states = [tuple(40 for _ in state) for state in runner.states]
    again = asks(prompt)
    assert again.reused == 0
    assert again.finish_reason != "error"


def failing(*_given, **_more):
    raise OutOfMemory("no more")


def test_a_preempted_request_resumes_as_soon_as_another_has_ended():
    runner = Fake(8, 0, attends=True, recurs=True, look_ahead=0)
    engine = Engine(runner)
    ids = [engine.add(Request([n + 1] * 5, SamplingParams(max_tokens=90))) for n in range(3)]
    for _ in range(4):
        engine.step()
    last = engine._slots.running[-1]
    engine._slots.wait(engine._slots.preempt(last))
    engine._slots.preempted = True
    engine.step()
    assert last.slot < 0, "it must wait"
    engine.abort(ids[0])
    engine.step()
    assert last.slot >= 0
    assert len(engine._slots.running) == 2


@pytest.mark.parametrize("reason", ["abort", "stop"])
def test_a_request_that_has_lost_its_slot_or_never_had_one_ends_with_an_update(reason):
    engine = Engine(Fake(9, 0, attends=True, recurs=True, look_ahead=0))
    ids = [engine.add(Request([n + 1] * 5, SamplingParams(max_tokens=30))) for n in range(SLOTS + 2)]
    engine.step()
    engine.pause(ids[1])
    engine.step()
    assert [*engine._slots.parked] == [engine._slots.sequences[ids[1]]]
    for id in (ids[1], ids[-1]):
        getattr(engine, reason)(id)
        assert id not in engine._slots.sequences
        assert [update.finish_reason for update in engine.step() if update.id == id] == [reason]
    assert not engine._slots.parked and not engine._slots.waiting


def test_the_tokens_of_a_prompt_that_no_step_has_read_are_counted():
    engine = Engine(Fake(9, 0, attends=True, recurs=True, look_ahead=0))
    ids = [engine.add(Request([n + 1] * 100, SamplingParams(max_tokens=3))) for n in range(SLOTS + 1)]
    assert [engine.unread(id) for id in ids] == [100] * 4
    assert engine.skip(ids[-1]), "it waits for a slot"
    engine.step()
    assert sum(engine.unread(id) for id in ids) == 400 - CHUNK
    assert (engine.activity.steps, engine.activity.running, engine.activity.waiting) == (1, SLOTS, 1)
    assert not engine.skip(ids[0]), "nothing is stored"
    engine.abort(ids[0])
    assert engine.unread(ids[0]) == engine.unread(999) == 0
    while engine.busy:
        engine.step()
    assert not any(engine.unread(id) or engine.skip(id) for id in ids)
    assert engine.activity.chunks > engine.activity.steps > 1


def test_the_row_before_a_new_sequence_is_forgotten_as_it_belongs_to_another_text():
    runner, forgotten = Fake(9, 4, attends=True, recurs=False, look_ahead=0), []
    runner.forget_row = lambda *given: forgotten.append(given)
    engine = Engine(runner)
    engine.prefixes._max_bytes = 1000
    for more in ([], [5]):
        engine.add(Request([1] * PAGE + more, SamplingParams(max_tokens=1), keep=True))
        while engine.busy:
            engine.step()
    assert forgotten == [(0, 0), (1, PAGE)]


def test_an_engine_with_paused_requests_only_is_not_busy():
    engine = Engine(Fake(9, 0, attends=True, recurs=True, look_ahead=0))
    ids = [engine.add(Request([n + 1] * 5, SamplingParams(max_tokens=30))) for n in range(2)]
    engine.step()
    engine.pause(ids[0])
    assert engine.busy
    engine.pause(ids[1])
    assert not engine.busy
    engine.abort(ids[1])
    assert engine.busy, "its last update was not delivered"
    assert [update.id for update in engine.step()] == [ids[1]]
    engine.resume(ids[0])
    assert engine.busy


def test_a_closed_engine_has_no_requests_and_has_freed_everything():
    runner, closed = Fake(9, 0, attends=True, recurs=True, look_ahead=2), []
    engine, free = Engine(runner), runner.store.free
    runner.close = lambda: closed.append(runner)
    for n in range(SLOTS + 1):
        engine.add(Request([n + 1] * 5, SamplingParams(max_tokens=30)))
    engine.step()
    engine.close()
    assert not engine.busy and engine.activity.running == engine.activity.waiting == 0
    assert (closed, runner.store.free) == ([runner], free)
    with pytest.raises(RuntimeError, match="shutdown"):
        engine._host_work.executor.submit(len, ())


def test_a_prefix_that_cannot_be_stored_ends_its_request_and_is_freed(monkeypatch):
    runner = Fake(9, 4, attends=True, recurs=True, look_ahead=0)
    engine, free = Engine(runner), runner.store.free
    monkeypatch.setattr(engine.prefixes, "store", failing)
    engine.add(Request([1] * 70, SamplingParams(max_tokens=3), keep=True))
    while engine.busy:
        news = engine.step()
    assert (news[-1].finish_reason, type(news[-1].error)) == ("error", OutOfMemory)
    assert runner.store.free == free


def test_a_resumed_request_keeps_its_place_in_the_queue():
    runner = Fake(8, 0, attends=True, recurs=True, look_ahead=0)
    engine = Engine(runner)
    ids = [engine.add(Request([n + 1] * 5, SamplingParams(max_tokens=90))) for n in range(SLOTS + 3)]
    engine.step()
    engine.pause(ids[1])
    engine.step()  # it gives its slot to the first that waits
    assert [sequence.id for sequence in engine._slots.running] == [ids[0], ids[2], ids[3]]
    engine.resume(ids[1])
    assert [sequence.id for sequence in engine._slots.waiting] == [ids[1], ids[4], ids[5]]
    assert not engine._slots.parked


prompts = st.tuples(st.integers(0, 3), st.integers(1, CONTEXT), st.integers(0, 2))


class Requests(RuleBasedStateMachine):
    """Random requests arrive, continue, stop and are aborted, usually with too little memory for all."""

    attends = recurs = True
    windows: tuple[int, ...] = (0,)

    @initialize(
        window=st.integers(0, 20),
        shift=st.none() | st.sampled_from([0, 1, 10, CONTEXT // 2 - 1, CONTEXT // 2, CONTEXT // 2 + 1, CONTEXT]),
        pages=st.integers(3, 8),
        checkpoints=st.integers(0, 4),
        look_ahead=st.integers(0, 9),
        interval=st.integers(1, 2 * CHUNK),
    )
    def begin(self, window, shift, pages, checkpoints, look_ahead, interval):
        self.runner = Fake(
            pages,
            checkpoints,
            attends=self.attends,
            recurs=self.recurs,
            look_ahead=look_ahead,
            interval=interval,
            window=self.windows[window % len(self.windows)],
        )
        self.shift = shift if self.attends else None  # states alone have no end
        self.engine = Engine(self.runner, context_shift=self.shift)
        self.saved: list[tuple[list[int], dict]] = []
        self.free = self.runner.store.free
        self.asked: dict[int, Request] = {}
        self.said: dict[int, list[int]] = {}
        self.stopped: dict[int, int] = {}
        self.paused: set[int] = set()
        self.failed: set[int] = set()
        self.overtaken: list[int] = []
        start, slots = self.engine._start, self.engine._slots

        def noted(sequence):
            if not sequence.started:  # an equal prompt that another reads does not make later ones wait
                read = {one.prompt_key for one in slots.running if one is not sequence}
                older = [one for one in slots.waiting if one.id < sequence.id]
                self.overtaken += [one.id for one in older if one.prompt_key not in read]
            start(sequence)

        self.engine._start = noted
        self.done: list[list[int]] = []

    @rule(prompt=prompts, most=st.integers(1, 60), keep=st.booleans(), marks=st.lists(st.integers(1, 60), max_size=2))
    def add(self, prompt, most, keep, marks):
        """Adds a prompt of few different tokens, so that many share a prefix; or one that continues an answer."""
        kind, length, go_on = prompt
        ids = [(kind + n * n) % VOCABULARY for n in range(length)]
        if go_on and self.done:
            ids = [*self.done[kind % len(self.done)], *ids[:20]][:CONTEXT]
        request = Request(ids, SamplingParams(max_tokens=most, stop_ids={STOP}), keep=keep, marks=tuple(marks))
        id = self.engine.add(request)
        self.asked[id], self.said[id] = request, []

    @rule(count=st.integers(1, 12))
    def step(self, count):
        for _ in range(count):
            for update in self.engine.step():
                self.receive(update)

    @rule(which=st.integers(0, 3), length=st.integers(1, CONTEXT))
    def export(self, which, length):
        """Exports the stored prefix of a text, as if for a file or another process."""
        if self.done:
            ids = self.done[which % len(self.done)][:length]
            found = self.engine.export(ids)
            if found is not None:
                assert found[1]["tokens"].tolist() == ids[: found[0]]
                self.saved.append((ids[: found[0]], found[1]))

    @rule(which=st.integers(0, 3))
    def restore(self, which):
        """Restores an exported prefix, unless there is no room."""
        if self.saved:
            ids, arrays = self.saved[which % len(self.saved)]
            with suppress(CacheFull):
                self.engine.restore(ids, arrays)

    @rule(which=st.integers(0, 5))
    def abort(self, which):
        if which < len(self.asked):
            self.engine.abort(sorted(self.asked)[which])

    @rule(which=st.integers(0, 5), back=st.integers(0, 5))
    def stop(self, which, back):
        if which < len(self.asked):
            id = sorted(self.asked)[which]
            count = max(0, len(self.said[id]) - back)
            self.engine.stop(id, count)
            self.said[id] = self.said[id][:count]
            self.stopped[id] = count

    @rule(which=st.integers(0, 5))
    def pause(self, which):
        """Stops reading the answer of a request."""
        if which < len(self.asked):
            self.paused.add(sorted(self.asked)[which])
            self.engine.pause(sorted(self.asked)[which])

    @rule(which=st.integers(0, 5))
    def resume(self, which):
        if which < len(self.asked):
            self.paused.discard(sorted(self.asked)[which])
            self.engine.resume(sorted(self.asked)[which])

    @rule(error=st.sampled_from([ValueError("odd"), OutOfMemory("no more")]))
    def a_step_fails(self, error):
        """Fails a step. The requests in it must end, and no state stored earlier may be used again.

        An earlier step may still end a request, whose prefix is then kept.
        """
        before = self.engine.prefixes.entries
        self.runner.breaks = error
        self.step(1)
        if self.runner.breaks is None:
            assert not any(entry is old for entry in self.engine.prefixes.entries for old in before)
        self.runner.breaks = None

    def receive(self, update):
        request = self.asked[update.id]
        if update.error is not None:
            assert update.finish_reason == "error" and isinstance(update.error, ValueError | OutOfMemory)
            self.failed.add(update.id)
            self.paused.discard(update.id)
            del self.asked[update.id]
            return
        self.said[update.id] += [said.token for said in update.sampled]
        said, expected = self.said[update.id], alone(request.ids, request.params.max_tokens, self.kept(request))
        assert said == expected[: len(said)]
        assert update.reused < len(request.ids)
        assert update.prompt_done <= update.prompt_tokens == len(request.ids)
        if update.finish_reason is None:
            return
        if update.finish_reason == "length":
            most = request.params.max_tokens
            assert len(said) == (most if self.shift is not None else min(most, CONTEXT - len(request.ids)))
        elif update.finish_reason == "stop" and update.id not in self.stopped:
            assert said == expected and len(said) < request.params.max_tokens
        self.done.append([*request.ids, *said][:CONTEXT])
        self.paused.discard(update.id)
        del self.asked[update.id]

    def kept(self, request) -> int | None:
        """The number of first tokens that are kept when the middle of a text is cut."""
        return None if self.shift is None else min(max(self.shift, *request.marks[:1], 0), CONTEXT // 2)

    @invariant()
    def slots_and_pages_are_those_of_who_runs(self):
        if hasattr(self, "engine"):
            assert len(self.engine._slots.running) + len(self.engine._slots.free) == SLOTS
            assert len(self.engine._slots.sequences) == len(self.asked) or self.engine._slots.updated

    @invariant()
    def who_came_first_begins_first(self):
        if hasattr(self, "engine"):
            assert not self.overtaken
            waiting = [sequence.id for sequence in self.engine._slots.waiting]
            assert waiting == sorted(waiting)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        for _ in range(10_000):
            if not self.engine.busy:
                break
            if not any(id not in self.paused for id in self.asked):
                break
            for update in self.engine.step():
                self.receive(update)
        for id in [*self.paused]:
            self.engine.resume(id)
        for _ in range(10_000):
            if not self.engine.busy:
                break
            for update in self.engine.step():
                self.receive(update)
        assert not self.asked, "a request never ended"
        self.engine.prefixes.clear()
        assert self.runner.store.free == self.free, "pages leaked"
        assert self.runner.windowed.pool.free == self.runner.windowed.pool.pages, "pages leaked"


class Attending(Requests):
    recurs = False


class Recurrent(Requests):
    attends = False


WINDOWS = 1, 2, 20, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1


class Windowed(Attending):
    windows = WINDOWS


class WindowedHybrid(Requests):
    windows = WINDOWS


for machine in (Requests, Attending, Recurrent, Windowed, WindowedHybrid):
    machine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, **PATIENT)
TestHybrid, TestAttending, TestRecurrent = Requests.TestCase, Attending.TestCase, Recurrent.TestCase
TestWindowed, TestWindowedHybrid = (pytest.mark.long(one.TestCase) for one in (Windowed, WindowedHybrid))
