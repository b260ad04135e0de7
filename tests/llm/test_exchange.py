"""Requests wait for stored states for a limited time, and states of ended turns are stored once."""

from types import SimpleNamespace

import pytest

from rwkv_gpu.engine.cache.prefix_index import TOKEN, key_of
from rwkv_gpu.llm.exchange import Exchange


class Engine:
    """An engine that has stored `known` tokens of every text."""

    def __init__(self, known: int = 0, *, rewinds: bool = False) -> None:
        self.known, self.rewinds, self.restored, self.left = known, rewinds, [], 0

    def stored(self, _):
        return self.known

    def unread(self, _):
        return self.left

    def restore(self, text, _):
        self.restored.append(len(text) // TOKEN)

    def skip(self, _):
        return True

    def export(self, text):
        return len(text) // TOKEN, {}


class States:
    """A store that is always worth asking for a state."""

    def __init__(self) -> None:
        self.asked, self.hedged, self.kept, self.times, self.is_full = [], [], [], [], False

    def wants(self, missing):
        return missing > 0

    def patience(self, missing):
        return float(missing)

    def fetch(self, text, known, then, wait):
        self.asked.append((len(text) // TOKEN, known, then, wait))

    def pays_to_restore(self, found, missing):
        return missing <= len(found[0]) // TOKEN

    def restored(self, found, _, saved, *, hedged):
        self.hedged.append((len(found[0]) // TOKEN, saved, hedged))

    def keep(self, text, _, beginnings=()):
        self.kept.append((len(text) // TOKEN, [*beginnings]))

    def lacks(self, text):
        return (len(text) // TOKEN) not in [kept for kept, _ in self.kept]

    def measured(self, tokens, seconds):
        self.times.append((tokens, seconds))


@pytest.fixture
def now(monkeypatch):
    clock = SimpleNamespace(at=100.0)
    monkeypatch.setattr("rwkv_gpu.llm.exchange.time.monotonic", lambda: clock.at)
    return clock


def sequence(tokens: int, marks=()):
    return SimpleNamespace(
        prompt=tokens, begun=0, key=lambda: key_of(range(tokens)), request=SimpleNamespace(marks=marks)
    )


def exchange(now, engine=None, states=None):
    return Exchange(engine or Engine(), states or States(), lambda job: job.run(), lambda: now.at)


def test_a_request_begins_when_its_patience_ends_or_the_store_says_so(now):
    states, begun, failed = States(), [], []
    both = exchange(now, states=states)
    assert both.due is None
    for name, tokens in (("long", 5), ("short", 3)):
        assert both.fetch(name, sequence(tokens), lambda name=name: begun.append(name), failed.append)
    assert not exchange(now).fetch("empty", sequence(0), lambda: None, failed.append)
    assert both.due == 103.0
    now.at = 102.9
    both.begin_overdue()
    assert begun == []
    now.at = 103.0
    both.begin_overdue()
    assert begun == ["short"]
    both.began("short", 1, sequence(3))
    assert both.due == 105.0
    states.asked[0][3](0.5)  # the size of the state is known
    assert both.due == 103.5
    both.forget("long", 0)
    assert both.due is None and not failed


def test_an_error_at_the_beginning_ends_that_request_only(now):
    one, failed, begun = exchange(now), [], []

    def fails():
        raise ValueError("no")

    one.fetch("a", sequence(1), fails, failed.append)
    one.fetch("b", sequence(1), lambda: begun.append("b"), failed.append)
    now.at += 1
    one.begin_overdue()
    assert [str(error) for error in failed] == ["no"] and begun == ["b"]


@pytest.mark.parametrize(("known", "saved"), [(0, 4), (3, 1), (4, 0), (5, -1)])
def test_a_state_is_restored_if_it_saves_tokens(now, known, saved):
    """Before a request begins, stored prefixes count; afterwards, the tokens that it has read."""
    found = key_of(range(4)), {}
    for begins in (False, True):
        engine, states, begun = Engine(0 if begins else known), States(), []
        one = exchange(now, engine, states)
        text = sequence(6)
        assert one.fetch("a", text, lambda begun=begun: begun.append(1), None)
        if begins:
            one.began("a", 7, text)
            engine.left = 6 - known
        states.asked[0][2](found)
        assert engine.restored == [4] * (saved > 0)
        assert states.hedged == [(4, saved, begins)] * (saved > 0)
        assert begun == [1] * (not begins)
        states.asked[0][2](found)  # the request is no longer known
        assert len(engine.restored) == (saved > 0)


def test_the_speed_of_a_prompt_is_measured_once_unless_a_state_was_restored(now):
    engine, states = Engine(), States()
    one, text = exchange(now, engine, states), sequence(6)
    one.fetch("a", text, lambda: None, None)
    one.began("a", 1, text)
    one.began("b", 2, text)
    engine.left = 6
    states.asked[0][2]((key_of(range(4)), {}))
    for done in (5, 6, 6):
        now.at += 1
        for number in (1, 2, 3):
            one.follow(SimpleNamespace(id=number, prompt_done=done, prompt_tokens=6, reused=1))
    assert states.times == [(5, 2.0)]


@pytest.mark.parametrize(
    ("rewinds", "kept"), [(False, [(4, []), (6, [])]), (True, [(6, [4])])], ids=["states", "pages"]
)
def test_an_ended_turn_is_stored_with_its_question(now, rewinds, kept):
    states = States()
    one = exchange(now, Engine(rewinds=rewinds), states)
    one.began("a", 1, sequence(6, marks=(2, 4)))
    one.export(1)
    one.export(1)
    assert sorted(states.kept) == kept
    one.began("a", 2, sequence(6, marks=(2, 4)))
    one.export(2)
    assert sorted(states.kept) == kept, "the store has these states"
    one.began("a", 3, sequence(9))
    one.forget("a", 3)
    one.export(3)
    assert sorted(states.kept) == kept, "the request was cancelled"


def test_turns_are_pushed_last_first_until_the_end(now):
    states = States()
    one = exchange(now, states=states)
    for number in (3, 5):
        one.began("a", number, sequence(number))
        one.export(number)
    assert [length for length, _ in states.kept] == [3, 5]
    states.kept.clear()
    assert [*one.push(now.at)] == [] == states.kept
    steps = one.push(now.at + 1)
    next(steps)
    assert states.kept == [(5, [])]
    states.is_full = True
    next(steps)
    assert len(states.kept) == 1, "it waits while the queue is full"
    now.at += 1
    assert [*steps] == [] and len(states.kept) == 1
