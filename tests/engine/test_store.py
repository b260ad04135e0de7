"""The sequence store: a sequence continues, rewinds, is stored and restored, and leaks no page."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rwkv_gpu.engine.cache.config import CacheConfig
from rwkv_gpu.engine.cache.pager import Pager
from rwkv_gpu.engine.cache.states import StatePages
from rwkv_gpu.engine.cache.store import SequenceStore, WindowPages
from rwkv_gpu.errors import CacheFull
from rwkv_gpu.ops.batch import Batch, Segment
from rwkv_gpu.ops.vocabulary import PAGE

PAGES, CONTEXT, STATES, HELD, APART = 14, 4 * PAGE, 15, 3, 2
WINDOW, SLACK, WINDOW_PAGES = 70, 9, 13
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # other programs use the machine, too
slots = st.integers(0, 3)


class Kinds(RuleBasedStateMachine):
    """Random sequences, and a simulated memory: states contain all tokens, and pages one token per position.

    With a window there are two memories of pages: one keeps all positions, the other only those that the next row
    sees.
    """

    pages = states = True
    window = False

    def __init__(self):
        super().__init__()
        self.memory = np.zeros((PAGES, PAGE), np.int64)
        self.state: list[tuple[int, ...]] = [()] * STATES
        pager = Pager(PAGES, CONTEXT) if self.pages else None
        states = StatePages(STATES, HELD, APART) if self.states else None
        self.windowed = Pager(WINDOW_PAGES, CONTEXT, WINDOW, SLACK)
        self.seen = np.zeros((WINDOW_PAGES, PAGE), np.int64)
        windows = {WINDOW: WindowPages(self.windowed, 1)} if self.window else {}
        self.store = SequenceStore(pager, states, self.copy, windows)
        self.pager, self.stated = pager, states
        self.expected: dict[int, list[int]] = {slot: [] for slot in range(4)}
        self.kept: list = []
        self.mark = 0

    def copy(self, copies, window=0):
        memory = self.seen if window else self.memory
        for copy in copies:
            memory[copy.target] = memory[copy.source]

    @rule(steps=st.dictionaries(slots, st.integers(1, PAGE + 9), min_size=1))
    def step(self, steps):
        """Advances some sequences by a chunk or by a token."""
        batch, rows = [], {}
        for slot, count in steps.items():
            start = len(self.expected[slot])
            count = min(count, CONTEXT - start)
            if count:
                rows[slot] = list(range(self.mark, self.mark + count))
                self.mark += count
                batch.append((slot, start, rows[slot]))
        if not batch:
            return
        try:
            placed = self.store.prepare(Batch.of([(slot, start, [0] * len(ids)) for slot, start, ids in batch]))
        except CacheFull:
            return
        read = {s.slot: self.state[s.source] if s.start else () for s in placed.segments}
        for segment in placed.segments:
            ids = rows[segment.slot]
            if self.states:
                assert list(read[segment.slot]) == self.expected[segment.slot]
                assert self.stated.pool.holders(segment.target) == 1, "wrote a state that others hold"
                self.state[segment.target] = (*read[segment.slot], *ids)
            for position, id in enumerate(ids, segment.start):
                if self.pages:
                    page = segment.pages[position // PAGE]
                    assert self.pager.pool.holders(page) == 1, "wrote into a page that others hold"
                    self.memory[page, position % PAGE] = id
            self.expected[segment.slot] += ids
            if self.window:
                self.attend_within_the_window(segment, ids)

    def attend_within_the_window(self, segment, ids):
        """Checks that each row of a step sees the expected tokens, as if all had been stored."""
        table, whole = segment.table(WINDOW), self.expected[segment.slot]
        assert len(table) == -(-segment.end // PAGE)
        for position, id in enumerate(ids, segment.start):
            page = table[position // PAGE]
            assert self.windowed.pool.holders(page) == 1, "wrote into a page that others hold"
            self.seen[page, position % PAGE] = id
        for position in segment.positions:
            first = max(0, position + 1 - WINDOW)
            found = [self.seen[table[n // PAGE], n % PAGE] for n in range(first, position + 1)]
            assert found == whole[first : position + 1]

    @rule(slot=slots, back=st.integers(0, 80))
    def go_back(self, slot, back):
        most = max(0, len(self.expected[slot]) - back)
        length = self.store.truncate(slot, most)
        assert length <= most
        assert self.states or length == most or (self.window and length == 0 and back > SLACK)
        self.expected[slot] = self.expected[slot][:length]

    @rule(slot=slots, back=st.integers(0, 80), whole=st.booleans())
    def keep(self, slot, back, whole):
        if len(self.kept) < 3:
            kept = self.store.keep(slot, max(0, len(self.expected[slot]) - back), whole=whole)
            if kept:
                self.kept.append((kept, self.expected[slot][: kept.length]))

    @rule(slot=slots, which=st.integers(0, 2), back=st.integers(0, 80))
    def take_up(self, slot, which, back):
        if which < len(self.kept):
            kept, ids = self.kept[which]
            length = max(kept.oldest, kept.length - back)
            self.store.adopt(slot, kept, length)
            self.expected[slot] = list(ids[:length])

    @rule()
    def release(self):
        if self.kept:
            self.store.release(self.kept.pop(0)[0])

    @invariant()
    def sequences_are_what_they_came_to(self):
        for slot, ids in self.expected.items():
            assert self.store.length(slot) == len(ids)
            if ids and self.states:
                assert list(self.state[self.store.state(slot)]) == ids
            if self.pages:
                table = self.pager.table(slot)
                assert [self.memory[table[n // PAGE], n % PAGE] for n in range(len(ids))] == ids

    @invariant()
    def what_is_kept_stays(self):
        for kept, ids in self.kept:
            assert kept.state is None or list(self.state[kept.state]) == ids
            if self.pages:
                assert [self.memory[kept.pages[n // PAGE], n % PAGE] for n in range(len(ids))] == ids

    def teardown(self):
        for kept, _ in self.kept:
            self.store.release(kept)
        for slot in self.expected:
            self.store.forget(slot)
        assert self.store.free == (PAGES * self.pages, STATES * self.states), "pages leaked"
        assert self.windowed.pool.free == WINDOW_PAGES, "pages leaked"


class Attending(Kinds):
    states = False


class Recurrent(Kinds):
    pages = False


class Windowed(Attending):
    window = True


class WindowedHybrid(Kinds):
    window = True


for machine in (Kinds, Attending, Recurrent, Windowed, WindowedHybrid):
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, **PATIENT)
TestHybrid, TestAttending, TestRecurrent = Kinds.TestCase, Attending.TestCase, Recurrent.TestCase
TestWindowed, TestWindowedHybrid = Windowed.TestCase, WindowedHybrid.TestCase


def test_a_sequence_keeps_only_pages_of_its_window_and_of_a_rollback():
    pager = Pager(100, 100 * PAGE, WINDOW, SLACK)
    for length in range(0, 90 * PAGE, 7):
        pager.prepare([Segment(0, 7, 0, length)])
        assert len(pager.held(0).pages) <= -(-(WINDOW + SLACK + 7) // PAGE) + 1
    assert pager.oldest(0) <= length + 7 - SLACK


def test_a_step_that_finds_too_few_pages_of_a_window_takes_none_of_the_others():
    pager, windowed = Pager(20, CONTEXT), Pager(1, CONTEXT, WINDOW, SLACK)
    store = SequenceStore(pager, None, lambda copies, window=0: None, {WINDOW: WindowPages(windowed, 1)})
    with pytest.raises(CacheFull):
        store.prepare(Batch.of([(0, 0, [0] * (PAGE + 1))]))
    assert (pager.pool.free, windowed.pool.free) == (20, 1)


def test_a_sequence_can_go_back_to_its_last_states_only():
    store = SequenceStore(None, StatePages(4, HELD), lambda copies, window=0: None)
    for length in range(6):
        store.prepare(Batch.of([(0, length, [1])]))
    assert store.truncate(0, 4) == 4
    assert store.truncate(0, 3) == 0


@pytest.mark.parametrize("look_ahead", range(17))
def test_a_sequence_can_go_back_to_shortly_before_its_first_unknown_token(look_ahead):
    config = CacheConfig(0, 1, "f32", look_ahead=look_ahead)
    store = SequenceStore(
        None, StatePages(config.states, config.history, config.spacing), lambda copies, window=0: None
    )
    prompt = 5
    store.prepare(Batch.of([(0, 0, [1] * prompt)]))
    for length in range(prompt + 1, 60):
        store.prepare(Batch.of([(0, length - 1, [1])]))
        known = max(prompt, length - look_ahead - 1)
        kept = store.keep(0, known)
        assert known - config.spacing < kept.length <= known
        store.release(kept)


def test_a_sequence_begins_in_place_of_another_and_takes_nothing_if_it_is_empty():
    store = SequenceStore(Pager(4, CONTEXT), StatePages(4, HELD), lambda copies, window=0: None)
    store.prepare(Batch.of([(1, 0, [1] * (PAGE + 1))]))
    store.begin(1, 3)
    assert (store.length(1), store.free) == (3, (3, 3))
    store.begin(1, 0)
    assert (store.length(1), store.free) == (0, (4, 4))


@pytest.mark.parametrize("slot", [0, 1])
def test_a_sequence_without_its_beginning_goes_back_to_its_oldest_length_and_is_stored_from_there(slot):
    for length, back in ((40, 40), (39, 0)):
        store = SequenceStore(Pager(4, CONTEXT), None, lambda copies, window=0: None)
        store.begin(slot, 50, 40)
        kept = store.keep(slot, length)
        assert (kept.length if kept else 0) == back
        assert store.truncate(slot, length) == back
        store.prepare(Batch.of([(slot, back, [1] * 5)]))
        assert store.truncate(slot, 2) == (0 if back else 2), "a sequence that began anew has all positions"


def test_too_few_states_raise_before_any_is_allocated():
    store = SequenceStore(None, StatePages(2, 2), lambda copies, window=0: None)
    store.prepare(Batch.of([(0, 0, [1])]))
    with pytest.raises(CacheFull, match="needs 2 states, but only 1 of 2 are free"):
        store.prepare(Batch.of([(1, 0, [1]), (2, 0, [1])]))
    assert store.free == (0, 1)


def test_a_state_that_a_stored_prefix_holds_is_not_free_when_its_sequence_gives_it_up():
    store = SequenceStore(None, StatePages(2, 2), lambda copies, window=0: None)
    for length in range(2):
        store.prepare(Batch.of([(0, length, [1])]))
    prefix = store.keep(0, 1)
    with pytest.raises(CacheFull, match="needs 1 states, but only 0 of 2"):
        store.prepare(Batch.of([(0, 2, [1])]))
    assert store.length(0) == 2
    store.release(prefix)
    store.prepare(Batch.of([(0, 2, [1])]))
    assert store.length(0) == 3


class Rows(NamedTuple):
    """A step of slot 0."""

    start: int
    end: int
    keeps: bool = True
    unverified: int = 0
    slot: int = 0


START = PAGE - 5  # tokens before a round of one known token and two drafts, which another round follows


def two_rounds(states: StatePages) -> tuple[SequenceStore, Pager]:
    """Places a prompt and two rounds; the result of the first is not known when the second is placed."""
    pager = Pager(4, CONTEXT)
    store = SequenceStore(pager, states, lambda *_: None)
    for rows in (Rows(0, START, keeps=False), Rows(START, START + 3), Rows(START + 3, START + 6, unverified=2)):
        store.place([rows])
    return store, pager


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_correction_removes_wrong_drafts_and_moves_the_states_and_pages_of_the_round_after(wrong):
    store, pager = two_rounds(states := StatePages(12, 4))
    assert pager.pool.free == 2
    known = START + 3 - wrong
    before = [states.page(0, at) for at in range(START + 1, known + 1)]
    after = [states.page(0, at) for at in range(START + 4, START + 7)]
    assert store.correct(0, known, wrong) == START + 6 - wrong == states.length(0)
    assert [states.page(0, at) for at in range(START + 1, START + 7 - wrong)] == before + after
    assert (pager.pool.free, states.pool.free) == (2 + (wrong > 0), 12 - len(before + after))
    store.place([Rows(START + 6 - wrong, START + 9 - wrong, unverified=2)])
    store.forget(0)
    assert store.free == (4, 12)


@pytest.mark.parametrize(("held", "oldest"), [(2, 1), (3, 1), (4, 1), (5, 0)])
def test_a_round_keeps_each_state_that_it_may_read_and_no_more_than_are_allowed(held, oldest):
    store, _ = two_rounds(states := StatePages(12, held))
    assert states.pool.free == 12 - (7 - oldest)
    assert states.nearest(0, START) == (0 if oldest else START)
    assert [states.nearest(0, at) for at in range(START + 1, START + 7)] == [*range(START + 1, START + 7)]
    store.forget(0)


def test_a_round_for_which_states_in_use_would_be_given_up_does_not_fit():
    two_rounds(StatePages(6, 3))  # the state at START is given up
    with pytest.raises(CacheFull, match="needs 3 states, but only 2 of 5"):
        two_rounds(StatePages(5, 3))
