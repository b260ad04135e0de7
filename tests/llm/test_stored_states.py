"""A state store lets another process continue a chat: the text is the same, and only new tokens are computed."""

import json
import logging
import re
import shutil
import threading
import time
from contextlib import closing
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine.cache.prefix_index import TOKEN, key_of
from rwkv_gpu.engine.state_file import ModelId
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.exchange import Exchange
from rwkv_gpu.llm.fetch_rule import FetchRule, Rate
from rwkv_gpu.llm.stored_states import BLOCK, MAX_FETCHES, MAX_LENGTHS, StoredStates, _lengths
from rwkv_gpu.stores import MemoryStore, StoreDown
from rwkv_gpu.stores.sealed import SealedStore
from tests.engine.test_adapters import write
from tests.engine.test_initial_state import NAME as TUNED
from tests.engine.test_initial_state import tuned
from tests.engine.test_initial_state import write as write_initial
from tests.golden_files import OWN, golden
from tests.process import PATIENCE

# A state, pages, both, and pages of windows.
MODELS = [OWN / f"{name}.gguf" for name in ("quiet-rwkv7", "tiny-llama", "tiny-granitehybrid", "tiny-gemma3")]
KEY = b"a key that nobody guesses"
FIRST = "Here is a long first question, with words and words and words, so that it has a hundred tokens and more. " * 2
SECOND = "And a second one."
PER_TOKEN = 2 * 2 * 2 * 64 * 2  # bytes of tiny-llama: layers, keys and values, heads, dims, f16
SETTINGS = {"max_tokens": 12, "temperature": 0}


def opened(path, store=None, **more):
    more = {"store_key": KEY, **more} if store is not None else more
    llm = rwkv_gpu.load(path, device="cpu", sequences=2, store=store, **more)
    llm.chat_format = llm.chat_format_of("chatml")  # not every file has a template
    if llm.states is not None:
        llm.states.rule.least = 30.0  # waits for a fetch: these models compute as fast as they fetch
    return llm


def messages_after(answer: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": FIRST},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": SECOND},
    ]


def turn(llm, messages) -> tuple[str, int]:
    """Returns the answer, and the number of prompt tokens that were reused."""
    done = llm.create_chat_completion(messages, **SETTINGS)
    return done["choices"][0]["message"]["content"], done["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(params=MODELS, ids=lambda path: path.stem)
def path(request):
    return request.param


def first_turn(path, store, **more) -> str:
    with opened(path, store, **more) as llm:
        answer, reused = turn(llm, [{"role": "user", "content": FIRST}])
        assert reused == 0
        return answer


def second_turn(path, store, answer, **more) -> tuple[str, int]:
    with opened(path, store, **more) as llm:
        return turn(llm, messages_after(answer))


def test_another_process_continues_with_the_same_answer(path):
    store = MemoryStore()
    answer = first_turn(path, store)
    expected, none = second_turn(path, None, answer)
    text, reused = second_turn(path, store, answer)
    assert none == 0
    assert text == expected
    assert reused > 100


@pytest.mark.parametrize("rewinds", [True, False])
def test_a_stored_turn_contains_its_question_and_answer(rewinds):
    """One state is enough if a prefix can be cut off it; a recurrent model needs two."""
    kept = []
    engine = SimpleNamespace(rewinds=rewinds, export=lambda text: (len(text) // TOKEN, {}))
    states = SimpleNamespace(
        lacks=lambda text: True,
        keep=lambda text, state, beginnings: kept.append((len(text) // TOKEN, list(beginnings))),
    )
    Exchange(engine, states, lambda job: None, time.monotonic)._keep_all(key_of(range(100)), (100, 60))
    assert sorted(kept) == ([(100, [60])] if rewinds else [(60, []), (100, [])])


def test_a_directory_has_a_key_of_its_own(tmp_path):
    answer = first_turn(MODELS[0], tmp_path, store_key=None)
    assert second_turn(MODELS[0], str(tmp_path), answer, store_key=None)[1] > 100
    assert second_turn(MODELS[0], tmp_path, answer, store_key=KEY)[1] == 0


@pytest.mark.parametrize("other", [{"tenant": "somebody else"}, {"store_key": KEY + b"!"}], ids=["tenant", "key"])
def test_another_tenant_or_key_computes_the_state_itself(path, other):
    store = MemoryStore()
    answer = first_turn(path, store)
    expected, _ = second_turn(path, None, answer)
    assert second_turn(path, store, answer, **other) == (expected, 0)


def test_another_file_of_the_same_model_computes_the_state_itself(tmp_path):
    """The last byte of the weights differs; names, shapes and sizes are the same."""
    store = MemoryStore()
    answer = first_turn(MODELS[0], store)
    other = tmp_path / "other.gguf"
    shutil.copy(MODELS[0], other)
    data = bytearray(other.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    assert second_turn(other, store, answer)[1] == 0


def test_a_state_belongs_to_its_adapters_and_their_scales(tmp_path):
    path, store = golden("tiny-llama.gguf"), MemoryStore()
    one, other = (write(tmp_path, "llama", name, seed=seed) for seed, name in enumerate(("one", "other")))
    answer = first_turn(path, store, lora=one)
    assert second_turn(path, store, answer, lora=one)[1] > 100
    for lora in (None, other, [(one, 0.5)]):
        assert second_turn(path, store, answer, lora=lora)[1] == 0
    with opened(path, store, lora=one) as llm:  # a request with its own scales
        before = llm.states.counts.stored, llm.states.counts.fetched
        llm.create_chat_completion(messages_after(answer), lora={"one": 0.5}, **SETTINGS)
    assert (llm.states.counts.stored, llm.states.counts.fetched) == before


class Damaging(MemoryStore):
    """A store that flips a byte of each value, or truncates it."""

    def __init__(self, damage) -> None:
        super().__init__()
        self.damage = damage

    def get(self, keys):
        return [None if value is None else self.damage(value) for value in super().get(keys)]


DAMAGES = {
    "flipped at the start": lambda value: bytes([value[0] ^ 1]) + value[1:],
    "flipped in the middle": lambda v: v[: len(v) // 2] + bytes([v[len(v) // 2] ^ 64]) + v[len(v) // 2 + 1 :],
    "cut": lambda value: value[:-1],
    "empty": lambda value: b"",
    "another's": lambda value: value[::-1],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_computed_again_and_logged(damage, caplog):
    store = Damaging(lambda value: value)
    answer = first_turn(MODELS[0], store)
    expected, _ = second_turn(MODELS[0], None, answer)
    store.damage = damage
    assert second_turn(MODELS[0], store, answer) == (expected, 0)
    [record] = [one for one in caplog.records if one.name == "rwkv_gpu.states"]
    assert "damaged" in record.message and re.fullmatch("[0-9a-f]{64}", record.fields["key"])


def test_damaged_states_are_logged_once_a_minute_with_the_number_of_others(caplog, monkeypatch):
    """This includes values that were written with the store's key."""
    now = 100.0
    with opened(MODELS[0], MemoryStore()) as llm:
        turn(llm, [{"role": "user", "content": FIRST}])
        states, texts = llm.states, [key_of([n] * 100) for n in range(4)]
        states._writing.submit(int).result()
        monkeypatch.setattr("rwkv_gpu.llm.stored_states.time", SimpleNamespace(monotonic=lambda: now))
        for number, text in enumerate(texts):
            states._store.put(states._prefixes(text).state(100), b"no state\n")
            now += 100.0 * (number == 3)
            assert states._fetched(states._prefixes(text).state(100), 100) is None
    lines = [one.fields for one in caplog.records if one.name == "rwkv_gpu.states"]
    assert [one["others"] for one in lines] == [0, 2] and all("\n" not in one["reason"] for one in lines)
    assert states.counts.refused == 4


@pytest.fixture
def states():
    """Returns stored states without a model; the tokens of a state are its rows."""
    model = SimpleNamespace(start=lambda: None, digest=lambda: "f", model_id=lambda: ModelId("f"))
    with closing(StoredStates(SealedStore(MemoryStore(), KEY), model, "", "")) as states:
        yield states


def rows(tokens: int) -> tuple[bytes, dict[str, np.ndarray]]:
    return key_of(list(range(tokens))), {"x": np.arange(tokens, dtype=np.float32)}


def test_only_states_of_a_whole_block_are_stored_and_fetched(states):
    for tokens in (BLOCK - 1, BLOCK):
        text, state = rows(tokens)
        assert states.lacks(text) is (tokens == BLOCK)
        states.measured(tokens, 1.0)
        assert (states.rule.computed.value is not None) is (tokens == BLOCK)
        states.keep(text, state)
        states._writing.submit(int).result()
        assert states.counts.stored == (tokens == BLOCK)
    assert not states.lacks(text)
    ids = list(range(BLOCK + 1))
    assert states.find(ids[:BLOCK]) is None, "the last token of a prompt is computed"
    found, arrays = states.find(ids)
    assert (found, arrays["x"].tolist()) == (text, [*range(BLOCK)])
    assert states.find(ids, known=1) is None, "it saves less than a block"


def test_a_state_is_fetched_for_each_of_its_beginnings_and_for_no_longer_text(states):
    text, state = rows(3 * BLOCK)
    states.write(text, state, (BLOCK, 2 * BLOCK))
    for tokens in (BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK + 1):
        length = (tokens - 1) // BLOCK * BLOCK
        found, arrays = states.find(list(range(tokens)))
        assert (len(found) // TOKEN, arrays["x"].tolist()) == (length, [*range(length)])
    key = states._prefixes(text).state(3 * BLOCK)
    assert states._fetched(key, 3 * BLOCK) is not None
    assert states._fetched(key, 3 * BLOCK + 1) is None and states.counts.refused == 1


def test_the_states_that_wait_to_be_written_are_limited_and_a_single_one_may_be_larger(states, monkeypatch):
    text, state = rows(BLOCK)
    size = state["x"].nbytes
    gate = threading.Event()
    for most, kept in ((size - 1, 1), (2 * size - 1, 1), (2 * size, 2)):
        monkeypatch.setattr("rwkv_gpu.llm.stored_states.MAX_WAITING", most)
        gate.clear()
        states._writing.submit(gate.wait)
        before, full = states.counts.stored, []
        for _ in range(3):
            states.keep(text, state)
            full.append(states.is_full)
        assert full == [number * size > most // 2 for number in (min(one, kept) for one in (1, 2, 3))]
        gate.set()
        states._writing.submit(int).result()
        assert states.counts.stored - before == kept


def test_the_memory_of_stored_prefixes_is_limited_to_the_latest(states, monkeypatch):
    monkeypatch.setattr("rwkv_gpu.llm.stored_states.MAX_KNOWN", 2)
    texts = [bytes([number]) * TOKEN * BLOCK for number in range(3)]
    for text in texts:
        states._note(text)
    assert [states.lacks(text) for text in texts] == [True, False, False]


class Down:
    """A store that is unavailable."""

    calls = 0

    def get(self, *_):
        self.calls += 1
        raise StoreDown("no")

    put = get


def test_a_store_that_is_down_costs_time_only(path):
    store = Down()
    expected, _ = second_turn(path, None, "so it is")
    with opened(path, store) as llm:
        assert turn(llm, messages_after("so it is")) == (expected, 0)
        calls = store.calls
        turn(llm, messages_after("so it was"))
        assert store.calls == calls  # the store is not used for a while
        assert llm.states.counts.failures == calls


class Slow(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def get(self, keys):
        self.asked.set()
        assert self.go.wait(30)
        return super().get(keys)


def test_others_continue_while_a_store_is_slow_and_a_closed_answer_is_dropped():
    store = Slow()
    with opened(MODELS[0], store) as llm:
        waiting = llm.chat().stream(FIRST, **SETTINGS)
        assert store.asked.wait(10)
        assert llm.generate("a text", max_tokens=4, temperature=0).text
        waiting.close()
        store.go.set()
        assert llm.chat().send(FIRST, **SETTINGS).text is not None


def test_a_limited_number_of_states_is_fetched_at_a_time_and_the_library_prints_nothing(monkeypatch):
    assert logging.getLogger("rwkv_gpu.states").handlers, "Python prints warnings of a logger without a handler"
    gate, arrived = threading.Event(), SimpleQueue()
    with closing(StoredStates(None, SimpleNamespace(start=lambda: None), "", "")) as states:
        monkeypatch.setattr(states, "find", lambda *_: gate.wait())
        wanted = [states.wants(BLOCK + 1)]
        for _ in range(MAX_FETCHES):
            states.fetch(b"", 0, arrived.put, lambda _: None)
            wanted.append(states.wants(BLOCK + 1))
        gate.set()
        assert wanted == [True] * MAX_FETCHES + [False]
        assert [arrived.get() for _ in range(MAX_FETCHES)] == [True] * MAX_FETCHES
        assert states.wants(BLOCK + 1) and not states.wants(BLOCK)


def measured(rule: FetchRule, bandwidth: float, tokens: float) -> None:
    """Returns a rule with measured rates of bytes and tokens per second."""
    rule.fetched.add(bandwidth, 1.0)
    rule.computed.add(tokens, 1.0)


def test_a_state_is_not_fetched_if_computing_is_faster():
    store = MemoryStore()
    answer = first_turn(MODELS[0], store)
    with opened(MODELS[0], store) as llm:
        measured(llm.states.rule, 1000.0, 1e6)
        assert turn(llm, messages_after(answer))[1] == 0
        assert llm.states.counts.skipped == 1
        llm.states.rule.restored.add(1000.0, 1.0)
        state = (b"", {"a": np.zeros(1000, np.float32)})
        assert [llm.states.pays_to_restore(state, missing) for missing in (10, 1 << 30)] == [False, True]
        assert llm.states.counts.late == 1
        stored = llm.states.counts.stored
    assert llm.states.counts.stored == stored, "nor is such a state written"
    with opened(MODELS[0], store) as llm:
        measured(llm.states.rule, 1e9, 10.0)
        assert turn(llm, messages_after(answer))[1] > 100
        assert llm.states.counts.fetched == 1


def test_the_rates_of_computing_and_fetching_are_measured():
    rate = Rate()
    rate.add(100, 2)
    assert rate.value == 50
    rate.add(100, 1)
    assert 50 < rate.value < 100
    store = MemoryStore()
    with opened(MODELS[0], store) as llm:
        turn(llm, [{"role": "user", "content": FIRST}])
    assert llm.states.rule.computed.value > 1
    assert llm.states.rule.stored.value > 1


def test_a_bandwidth_that_was_measured_long_ago_is_tried_again():
    now = [0.0]
    rule = FetchRule(lambda: now[0])
    measured(rule, 1e3, 1e3)
    assert not rule.pays(10_000, 100)
    now[0] = 61.0
    assert rule.pays(10_000, 100)


def test_a_fetch_that_is_not_surely_faster_is_hedged_after_a_tenth_of_computing():
    rule = FetchRule()
    assert rule.waits(10_000, 100) == rule.patience(100) == 0.25  # nothing is measured
    measured(rule, 1e3, 1e3)
    assert rule.patience(20_000) == 2.0
    assert rule.waits(15_000, 20_000) == 2.0, "15 seconds, where computing takes 20"
    assert rule.waits(4_000, 20_000) == 6.0, "4 seconds: computing begins when it takes much longer"
    assert rule.waits(100, 20_000) == 2.0


def test_a_fetch_that_takes_as_long_as_computing_does_not_pay():
    rule = FetchRule()
    assert [rule.pays_to_restore(1000, tokens) for tokens in (0, 1)] == [False, True]  # nothing is measured
    measured(rule, 1e3, 1e3)
    assert [rule.pays(1000, tokens) for tokens in (1000, 1001)] == [False, True]
    assert rule.waits(10_000, 20_000) == 15.0  # exactly half of computing is surely faster
    rule.restored.add(1e3, 1.0)
    assert [rule.pays_to_restore(1000, tokens) for tokens in (1000, 1001)] == [False, True]
    assert rule.patience(1) == 0.01
    rule.asked.add(1, 0.5)
    assert rule.fetching(1000) == 0.5 + 1.0 + 1.0


def test_a_rate_is_recent_for_less_than_a_minute_and_finite_for_no_time():
    now = [0.0]
    rate = Rate(lambda: now[0])
    rate.add(2, 0.0)
    assert rate.value == 2e6
    recent = []
    for now[0] in (59.0, 60.0):
        recent.append(rate.recent)
    assert recent == [rate.value, None]


def hedging(llm) -> None:
    """The rule fetches a state and starts the computation at the same time."""
    rule = llm.states.rule
    rule.pays, rule.patience, rule.waits = lambda *_: True, lambda _: 0.0, lambda *_: 0.0


def test_computing_begins_while_a_fetch_takes_long_and_a_late_state_is_ignored():
    store = MemoryStore()
    answer = first_turn(MODELS[0], store)
    slow = Slow()
    slow.go.set()
    for key in [*store._values._values]:
        slow.put(key, store.get([key])[0])
    slow.go.clear()
    with opened(MODELS[0], slow) as llm:
        hedging(llm)
        assert turn(llm, messages_after(answer))[1] == 0  # it was computed meanwhile
        slow.go.set()
    assert llm.states.counts.fetched == 0


def test_a_prompt_that_is_being_computed_continues_from_a_state_that_comes(path):
    """The state arrives after some chunks of the prompt, and the answer is the same."""
    store = MemoryStore()
    answer = first_turn(path, store)
    expected, _ = second_turn(path, None, answer)
    with opened(path, store, chunk_size=32) as llm:
        hedging(llm)
        states, engine = llm.states, llm._driver._engine
        find, step, arrived, steps = states.find, engine.step, threading.Event(), []

        def late(*args):
            assert arrived.wait(PATIENCE)
            return find(*args)

        def counted():
            updates = step()
            steps.append(len(updates))
            if len(steps) == 2:  # from now on the thread waits
                arrived.set()
                end = time.monotonic() + PATIENCE
                while not llm._driver._jobs:
                    assert time.monotonic() < end
                    time.sleep(0.001)
            return updates

        states.find, engine.step = late, counted
        text, reused = turn(llm, messages_after(answer))
    assert text == expected
    assert reused > 100
    assert states.counts.hedged == 1


@pytest.mark.parametrize("path", MODELS[:2], ids=lambda path: path.stem)
def test_states_that_the_store_did_not_get_are_pushed_before_the_end(path):
    """The store fails during the turns of two chats, and works again when the process drains."""
    store = Down()
    with opened(path, store) as llm:
        answer, _ = turn(llm, [{"role": "user", "content": FIRST}])
        turn(llm, [{"role": "user", "content": FIRST[::-1]}])
        llm.states._writing.submit(int).result()
        found = MemoryStore()
        store.get, store.put = found.get, found.put
        llm.store_states(30.0)
    assert len(found) >= 4
    assert second_turn(path, found, answer)[1] > 100


def test_a_state_that_the_store_has_is_not_written_again():
    with opened(MODELS[0], MemoryStore()) as llm:
        for _ in range(2):
            turn(llm, [{"role": "user", "content": FIRST}])
            llm._driver.call(lambda _: None)
            llm.states._writing.submit(int).result()
            assert llm.states.counts.stored == 2


@pytest.mark.parametrize("value", [b"", b"{}", b"[" * 10**5, b"[[1e999, 1, 2]]", b"[[1, 2]]", b"5", b'[["x", 1, 2]]'])
def test_a_list_of_lengths_that_cannot_be_read_is_empty(value):
    assert _lengths(value) == []


def test_a_list_of_lengths_has_the_last_few():
    """Otherwise a list of a popular beginning grows with every other conversation."""
    text, lists = key_of(list(range(2 * BLOCK))), []
    with opened(MODELS[0], MemoryStore()) as llm:
        put = llm.states._store.put
        llm.states._store.put = lambda key, value: (value.startswith(b"[[") and lists.append(value), put(key, value))
        for length in range(BLOCK, BLOCK + MAX_LENGTHS + 9):
            llm.states.write(text[: TOKEN * length], {"x": np.ones(4, np.float32)})
    assert max(len(json.loads(one)) for one in lists) == MAX_LENGTHS
    last = BLOCK + MAX_LENGTHS + 8
    assert [length for length, _, _ in json.loads(lists[-1])] == list(range(last, last - MAX_LENGTHS, -1))


def test_keys_and_values_are_written_once_a_turn_and_serve_shorter_prefixes_too():
    """The client sends back a changed answer, so only its question is the same."""
    path, store = golden("tiny-llama.gguf"), MemoryStore()
    with opened(path, store) as llm:
        turn(llm, [{"role": "user", "content": FIRST}])
    assert llm.states.counts.stored == 1
    expected, _ = second_turn(path, None, "something else")
    assert second_turn(path, store, "something else")[0] == expected
    assert second_turn(path, store, "something else")[1] > 100


def test_pushing_ends_when_its_time_is_up():
    released = threading.Event()

    class Stuck(MemoryStore):
        def put(self, *_):
            assert released.wait(PATIENCE)

    with opened(MODELS[0], Stuck()) as llm:
        for n in range(20):
            turn(llm, [{"role": "user", "content": f"{n} {FIRST}"}])
        llm.store_states(0.3)
        released.set()  # set after the call, which did not wait for the stuck store


def test_keys_and_values_are_stored_in_q8_where_only_that_pays():
    path, store = golden("tiny-llama.gguf"), MemoryStore()
    plain = MemoryStore()
    first_turn(path, plain)
    with opened(path, store) as llm:
        llm.states.rule.pays = lambda nbytes, tokens: nbytes < 0.6 * tokens * PER_TOKEN
        answer, _ = turn(llm, [{"role": "user", "content": FIRST}])
    assert llm.states.counts.stored > 0
    assert store.nbytes < 0.7 * plain.nbytes
    text, reused = second_turn(path, store, answer)
    assert reused > 100
    assert text


def test_a_tuned_initial_state_has_states_of_its_own_in_the_store(tmp_path):
    path, store = golden(TUNED), MemoryStore()
    initial = write_initial(tmp_path / "initial.gguf", tuned())
    answer = first_turn(path, store, initial_state=initial)
    expected, _ = second_turn(path, None, answer, initial_state=initial)
    assert second_turn(path, store, answer)[1] == 0
    text, reused = second_turn(path, store, answer, initial_state=initial)
    assert (text, reused > 100) == (expected, True)


def test_a_store_that_others_may_write_requires_a_key():
    with pytest.raises(BadInput, match="store_key"):
        rwkv_gpu.load(MODELS[0], device="cpu", store=MemoryStore())
    with pytest.raises(BadInput, match="at least 16 bytes"):
        rwkv_gpu.load(MODELS[0], device="cpu", store=MemoryStore(), store_key=b"short")
