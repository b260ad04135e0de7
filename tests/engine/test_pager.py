"""The pager: pages never leak, shared pages are never written, and a sequence always reads what it wrote."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rwkv_gpu.engine.cache.pager import Pager
from rwkv_gpu.errors import CacheFull, ContextFull
from rwkv_gpu.ops.batch import Segment
from rwkv_gpu.ops.vocabulary import PAGE

PAGES, CONTEXT, SLOTS = 12, 5 * PAGE, 4
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # other programs use the machine, too
slots = st.integers(0, SLOTS - 1)


def share(pager, source, other, length):
    """Shares the first positions of the source with another sequence."""
    pager.adopt(other, pager.pool.hold(pager.table(source)[: -(-length // PAGE)]), length)


class Sequences(RuleBasedStateMachine):
    """Sequences that grow, rewind, fork and end, with the expected content: one mark for every position."""

    def __init__(self):
        super().__init__()
        self.pager = Pager(PAGES, CONTEXT)
        self.memory = [[0] * PAGE for _ in range(PAGES)]
        self.expected: dict[int, list[int]] = {}
        self.held: list[tuple[tuple[int, ...], list[int]]] = []
        self.mark = 0

    @rule(steps=st.dictionaries(slots, st.tuples(st.floats(0, 1), st.integers(1, 2 * PAGE)), min_size=1))
    def step(self, steps):
        """Writes more tokens in some sequences, starting at any earlier position."""
        wanted = [
            Segment(0, count, slot, round(len(self.expected.get(slot, [])) * where))
            for slot, (where, count) in steps.items()
        ]
        before = self.pager.pool.free, [list(self.pager.table(slot)) for slot in range(SLOTS)]
        try:
            copies = self.pager.prepare(wanted)
        except ContextFull:
            assert any(want.end > CONTEXT for want in wanted)
            assert before == (self.pager.pool.free, [list(self.pager.table(slot)) for slot in range(SLOTS)])
            return
        except CacheFull:
            for want in wanted:
                self.expected[want.slot] = self.expected.get(want.slot, [])[: want.start]
            return
        for copy in copies:
            self.memory[copy.target][:] = self.memory[copy.source]
        for want in wanted:
            marks = list(range(self.mark + 1, self.mark + 1 + want.count))
            self.mark += want.count
            for position, mark in zip(range(want.start, want.end), marks, strict=True):
                page = self.pager.table(want.slot)[position // PAGE]
                assert self.pager.pool.holders(page) == 1, "wrote into a page that others hold"
                self.memory[page][position % PAGE] = mark
            self.expected[want.slot] = self.expected.get(want.slot, [])[: want.start] + marks

    @rule(source=slots, other=slots, part=st.floats(0, 1))
    def fork(self, source, other, part):
        if source != other:
            length = round(len(self.expected.get(source, [])) * part)
            share(self.pager, source, other, length)
            self.expected[other] = self.expected.get(source, [])[:length]

    @rule(slot=slots)
    def end(self, slot):
        self.pager.truncate(slot, 0)
        self.expected[slot] = []

    @rule(slot=slots)
    def hold(self, slot):
        """Pins full pages. They stay readable after their sequence has continued or ended."""
        full = len(self.expected.get(slot, [])) // PAGE
        self.held.append(
            (self.pager.pool.hold(self.pager.table(slot)[:full]), self.expected.get(slot, [])[: full * PAGE])
        )

    @rule(slot=slots)
    def adopt(self, slot):
        if self.held:
            pages, marks = self.held.pop()
            self.pager.adopt(slot, pages, len(marks))
            self.expected[slot] = list(marks)

    @rule()
    def let_go(self):
        if self.held:
            self.pager.pool.release(self.held.pop()[0])

    @rule(slot=slots, part=st.floats(0, 1))
    def go_back(self, slot, part):
        length = round(len(self.expected.get(slot, [])) * part)
        self.pager.truncate(slot, length)
        self.expected[slot] = self.expected.get(slot, [])[:length]

    @invariant()
    def a_sequence_holds_no_page_that_it_has_no_position_in(self):
        for slot in range(SLOTS):
            assert len(self.pager.table(slot)) == -(-len(self.expected.get(slot, [])) // PAGE)

    @invariant()
    def nothing_leaks(self):
        used = {page for slot in range(SLOTS) for page in self.pager.table(slot)}
        used |= {page for pages, _ in self.held for page in pages}
        assert self.pager.pool.free == PAGES - len(used)
        holders = [page for slot in range(SLOTS) for page in self.pager.table(slot)]
        holders += [page for pages, _ in self.held for page in pages]
        assert all(self.pager.pool.holders(page) == holders.count(page) for page in range(PAGES))

    @invariant()
    def every_sequence_reads_what_it_wrote(self):
        for slot, marks in self.expected.items():
            table = self.pager.table(slot)
            assert self.pager.length(slot) == len(marks)
            assert [self.memory[table[n // PAGE]][n % PAGE] for n in range(len(marks))] == marks
        for pages, marks in self.held:
            assert [self.memory[pages[n // PAGE]][n % PAGE] for n in range(len(marks))] == marks


Sequences.TestCase.settings = settings(max_examples=60, stateful_step_count=30, **PATIENT)
TestSequences = Sequences.TestCase


def test_errors_of_a_full_context_and_pool_have_the_numbers():
    pager = Pager(3, CONTEXT)
    with pytest.raises(ContextFull, match="321 tokens exceeds the available context size of 320"):
        pager.prepare([Segment(0, CONTEXT + 1, 0, 0)])
    pager.prepare([Segment(0, 2 * PAGE, 0, 0)])
    with pytest.raises(CacheFull, match="needs 2 pages of 64 tokens, but only 1 of 3 are free"):
        pager.prepare([Segment(0, PAGE + 1, 1, 0)])
    pager.prepare([Segment(0, PAGE, 1, 0)])


def test_a_fork_copies_nothing_until_one_sequence_writes():
    pager = Pager(4, CONTEXT)
    pager.prepare([Segment(0, PAGE + 5, 0, 0)])
    share(pager, 0, 1, PAGE + 5)
    assert list(pager.table(1)) == list(pager.table(0))
    [copy] = pager.prepare([Segment(0, 1, 0, PAGE + 5), Segment(0, 1, 1, PAGE + 5)])
    assert copy.source in pager.table(1) and copy.target in pager.table(0)
    assert pager.pool.free == 1


WINDOWS = sorted({1, 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1})
LENGTHS = sorted(
    {edge + near for edge in range(0, 5 * PAGE + 1, PAGE) for near in (-2, -1, 0, 1, 2)} & set(range(1, 5 * PAGE))
)


def test_a_sequence_that_begins_at_any_position_has_only_the_pages_that_its_next_row_reads():
    """Tested at each boundary of a page and of a window. The row at position p sees p and the window - 1 before it."""
    for window in WINDOWS:
        for length in LENGTHS:
            pager = Pager(PAGES, CONTEXT, window, slack=3)
            pager.begin(0, length)
            first = max(0, length - (window - 1)) // PAGE
            assert pager.held(0).first == first, (window, length)
            assert pager.held(0).end == -(-length // PAGE)
            needed = pager.held(0).end - first
            assert pager.pool.free == PAGES - needed
            Pager(needed, CONTEXT, window).begin(0, length)
            if needed:
                with pytest.raises(CacheFull, match=f"needs more pages than the {needed - 1} that are free"):
                    Pager(needed - 1, CONTEXT, window).begin(0, length)


def test_a_sequence_goes_back_as_far_as_its_pages_reach_and_not_one_position_further():
    for window in WINDOWS:
        for length in LENGTHS:
            pager = Pager(PAGES, CONTEXT, window, slack=3)
            pager.begin(0, length)
            oldest, first = pager.oldest(0), pager.held(0).first
            if not first:
                assert oldest == 0
                continue
            assert oldest - (window - 1) == first * PAGE, (window, length)  # the first position that its row attends to
            if oldest <= length:
                pager.truncate(0, oldest)
            if 0 < oldest - 1 < pager.length(0):
                with pytest.raises(AssertionError, match="has given back"):
                    pager.truncate(0, oldest - 1)


def test_slack_keeps_the_pages_for_going_back_by_as_many_positions():
    for window in WINDOWS:
        for slack in (0, 1, 3, PAGE):
            pager = Pager(PAGES, CONTEXT, window, slack=slack)
            for start in range(4 * PAGE):
                pager.prepare([Segment(0, 1, 0, start)])
                seen = max(0, start + 1 - window - slack) // PAGE
                assert pager.held(0).first == seen, (window, slack, start)


def test_a_sequence_needs_a_page_after_a_full_one_and_for_a_shared_one():
    pager = Pager(PAGES, CONTEXT)
    pager.prepare([Segment(0, PAGE - 1, 0, 0)])
    assert pager.check([Segment(0, 1, 0, PAGE - 1)]) == []
    share(pager, 0, 1, PAGE - 1)
    assert pager.check([Segment(0, 1, 0, PAGE - 1)])
    pager.truncate(1, 0)
    pager.prepare([Segment(0, 1, 0, PAGE - 1)])
    assert pager.check([Segment(0, 1, 0, PAGE)])


def test_an_unused_page_can_be_neither_shared_nor_released():
    pool = Pager(PAGES, CONTEXT).pool
    page = pool.take()
    pool.hold([page])
    pool.release([page])
    assert (pool.holders(page), pool.free) == (1, PAGES - 1)
    pool.release([page])
    assert (pool.holders(page), pool.free) == (0, PAGES)
    with pytest.raises(AssertionError, match="is free"):
        pool.hold([page])
    with pytest.raises(AssertionError, match="released too often"):
        pool.release([page])


def test_a_sequence_may_fill_the_context_to_its_last_position():
    pager = Pager(PAGES, CONTEXT)
    pager.prepare([Segment(0, CONTEXT, 0, 0)])
    with pytest.raises(ContextFull):
        pager.prepare([Segment(0, 1, 0, CONTEXT)])


def test_of_two_writers_of_one_shared_page_one_needs_a_copy():
    """After the copy, only the other writer uses the page. One free page is enough."""
    pager = Pager(2, CONTEXT)
    pager.prepare([Segment(0, 3, 0, 0)])
    share(pager, 0, 1, 3)
    assert pager.pool.free == 1
    assert len(pager.prepare([Segment(0, 1, 0, 3), Segment(1, 1, 1, 3)])) == 1
    assert pager.table(0) != pager.table(1)


def test_one_writer_of_a_page_that_many_share_needs_one_copy():
    """Each writer needs at most one page, and the last holder of a page none."""
    for sharing in (2, 3, 4):
        for writers in range(1, sharing + 1):
            copies = min(writers, sharing - 1)
            for free in (copies, copies - 1):
                pager = Pager(1 + free, CONTEXT)
                pager.prepare([Segment(0, 3, 0, 0)])
                for other in range(1, sharing):
                    share(pager, 0, other, 3)
                steps = [Segment(slot, 1, slot, 3) for slot in range(writers)]
                if free == copies:
                    assert len(pager.prepare(steps)) == copies
                    assert pager.pool.free == 0
                else:
                    with pytest.raises(CacheFull, match=f"needs {copies} pages"):
                        pager.prepare(steps)
