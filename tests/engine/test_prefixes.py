"""The prefix store: which states are stored and evicted, and the cost to start in the middle of a text."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rwkv_gpu.engine.cache.pager import Pager
from rwkv_gpu.engine.cache.prefix_index import PLAIN, TOKEN, PrefixIndex, Salt, key_of, shared
from rwkv_gpu.engine.cache.prefixes import PrefixCache
from rwkv_gpu.engine.cache.states import StatePages
from rwkv_gpu.engine.cache.store import PrefixHandle, SequenceStore
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.stored_prefixes import BY_CHANCE, StoredPrefixes
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.vocabulary import PAGE
from tests.engine.test_engine_states import CHUNK, CONTEXT, Fake

INTERVAL, STATES = 100, 4
TOKENS = st.lists(st.integers(0, 2), max_size=7)


def stored(states: int = STATES) -> tuple[SequenceStore, PrefixCache]:
    """Returns a store of a hybrid model, and a prefix cache with room for `states` states."""
    store = SequenceStore(Pager(400, 40_000), StatePages(states + 8, 2), lambda copies, window=0: None)
    return store, PrefixCache(store, 1 << 30, 1, 1, states)


def feed(store: SequenceStore, prefixes: PrefixCache, ids: list[int], *, wanted: bool = False) -> int:
    """Feeds a text through slot 0 and stores its states. Returns how many tokens had to be computed."""
    found = prefixes.find([*ids, 0])
    start = 0
    if found is not None:
        handle, start = found
        store.adopt(0, handle, start)
    for at in range(start, len(ids), INTERVAL):
        end = min(at + INTERVAL, len(ids))
        store.prepare(Batch.of([(0, at, ids[at:end])]))
        prefixes.store(ids[:end], store.keep(0, end), wanted=wanted)
    store.forget(0)
    return len(ids) - start


def lengths(prefixes: PrefixCache) -> list[int]:
    return sorted(len(entry.key) // TOKEN for entry in prefixes.entries)


@pytest.mark.parametrize("states", [4, 8, 16])
def test_the_states_of_a_long_text_are_spread_over_all_of_it(states):
    """Few states fit, but after an edit only a part of the text is computed again; after a late edit only a little."""
    store, prefixes = stored(states)
    total = 40 * INTERVAL
    feed(store, prefixes, list(range(total)))
    kept = [0, *lengths(prefixes)]
    assert len(kept) == states + 1
    assert kept[-1] == total
    assert max(np.diff(kept)) < 0.6 * total, "by last use alone, it would be nearly all"
    assert kept[-2] >= 0.9 * total


def test_token_ids_of_an_endless_chat_take_bounded_memory():
    """A state is identified by all earlier ids: 1,000,000 ids take 8 MB, which is more than many states."""
    store, prefixes = stored(states=64)
    prefixes._max_key_bytes = 8 * 10 * INTERVAL
    text = list(range(40 * INTERVAL))
    for end in range(INTERVAL, 9 * INTERVAL, INTERVAL):
        assert feed(store, prefixes, text[:end], wanted=True) == INTERVAL, "the chat continues from its last state"
        assert sum(lengths(prefixes)) <= 10 * INTERVAL
    assert prefixes._key_bytes == 8 * sum(lengths(prefixes))


def test_bytes_of_pages_and_states_are_counted_until_nothing_holds_them():
    store, prefixes = stored()
    text = list(range(4 * INTERVAL))
    feed(store, prefixes, text)
    pages = prefixes.nbytes - len(lengths(prefixes))
    assert pages == len(text) // PAGE + 4, "they share all pages but the last, which is not full"
    prefixes.clear()
    assert prefixes.nbytes == 0


def test_new_texts_evict_old_ones():
    store, prefixes = stored()
    feed(store, prefixes, list(range(4 * INTERVAL)))
    for n in range(1, 12):
        feed(store, prefixes, list(range(10_000 * n, 10_000 * n + 4 * INTERVAL)))
    assert all(int.from_bytes(entry.key[:TOKEN], "big") >= 80_000 for entry in prefixes.entries)


def test_the_next_turn_finds_the_last_state_even_if_few_fit():
    """The only state that fits is moved to the end of each turn, although an older one would save more tokens."""
    store, prefixes = stored(1)
    text = list(range(10 * INTERVAL))
    for turn in range(8):
        text += list(range(20_000 + 10 * turn, 20_000 + 10 * turn + 5))
        found = prefixes.find([*text, 0])
        assert turn == 0 or found[1] == len(text) - 5
        feed(store, prefixes, text, wanted=True)


def test_recently_used_prefixes_outlive_others():
    store, prefixes = stored(2)
    texts = [[n] * INTERVAL for n in range(4)]
    for text in texts[:2]:
        feed(store, prefixes, text)
    for text in texts[2:]:
        feed(store, prefixes, text)
        assert feed(store, prefixes, texts[3]) in (0, INTERVAL)
    assert prefixes.find([*texts[3], 0]) is not None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_each_entry_stores_its_longest_stored_prefix(data):
    store, prefixes = stored(6)
    for n in range(data.draw(st.integers(1, 12))):
        length, kind = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 2))
        ids = [0] * (INTERVAL * data.draw(st.integers(0, length))) + [kind] * INTERVAL * length
        feed(store, prefixes, ids, wanted=data.draw(st.booleans()))
        if data.draw(st.booleans()):
            prefixes.evict()
        for entry in prefixes.entries:
            within = [e for e in prefixes.entries if e is not entry and entry.key.startswith(e.key)]
            assert entry.shorter is max(within, key=lambda e: len(e.key), default=None), n
    prefixes.clear()
    assert store.free == (400, 14), "pages leaked"


def attending(max_bytes: int = 1 << 30) -> tuple[SequenceStore, PrefixCache]:
    """Returns a store of a model with attention alone, and its prefix cache, in which a page has one byte."""
    store = SequenceStore(Pager(9, 9 * PAGE), None, lambda copies, window=0: None)
    return store, PrefixCache(store, max_bytes, 1, 1, 0)


def put(store: SequenceStore, prefixes: PrefixCache, ids: list[int], *, wanted: bool = False) -> None:
    """Stores a text without looking for its beginning."""
    store.prepare(Batch.of([(0, 0, ids)]))
    prefixes.store(ids, store.keep(0, len(ids)), wanted=wanted)
    store.forget(0)


def test_of_texts_with_a_common_beginning_a_model_with_attention_stores_the_longest():
    store, prefixes = attending()
    text = list(range(3 * PAGE))
    for end, wanted in ((PAGE, True), (2 * PAGE, False), (PAGE, False)):
        put(store, prefixes, text[:end], wanted=wanted)
    put(store, prefixes, [7] * PAGE)
    assert lengths(prefixes) == [PAGE, 2 * PAGE]
    assert store.free == (6, 0)
    assert [entry.wanted for entry in prefixes.entries] == [True, False], "its beginning was requested"
    put(store, prefixes, [7] * PAGE, wanted=True)
    assert [entry.wanted for entry in prefixes.entries] == [True, True]
    prefixes.forget(text)
    assert (lengths(prefixes), store.free) == ([PAGE], (8, 0))


def test_a_cache_holds_as_many_bytes_and_states_as_it_may():
    for pages, stays in ((2, True), (3, False)):
        store, prefixes = attending(2)
        put(store, prefixes, list(range(pages * PAGE)))
        assert bool(prefixes) == stays
    for nbytes, stays in ((8 * PAGE, True), (8 * PAGE - 1, False)):
        store, prefixes = stored()
        prefixes._max_key_bytes = nbytes
        put(store, prefixes, list(range(PAGE)))
        assert bool(prefixes) == stays
    assert [attending(most)[1].stores for most in (0, 1)] == [False, True]
    assert [stored(states)[1].stores for states in (0, 1)] == [False, True]


def test_a_prefix_is_used_when_it_is_found_or_stored_again_however_often():
    store, prefixes = attending()
    texts = [[n] * PAGE for n in range(3)]
    for text in texts:
        put(store, prefixes, text)
    for _ in range(30):  # most ranks are then outdated, and made anew
        for text in texts[::-1]:
            assert prefixes.find([*text, 0])[1] == PAGE
    put(store, prefixes, texts[2])
    for left in ([0, 2], [2], []):
        prefixes.evict()
        assert [prefixes.find([n] * (PAGE + 1)) is not None for n in range(3)] == [n in left for n in range(3)]


def test_a_prefix_serves_texts_that_share_it_from_its_oldest_length_on():
    _, prefixes = attending()
    ids = list(range(100))
    assert prefixes.find(ids) is None
    prefixes.store(ids, PrefixHandle(100, (), None, oldest=40))
    found = [prefixes.find([*ids[:same], 999, 999]) for same in (0, 39, 40, 41, 100)]
    assert [one and one[1] for one in found] == [None, None, 40, 41, 100]


def test_a_state_is_cheaper_to_lose_once_its_beginning_is_stored():
    store, prefixes = stored()
    long, other = list(range(200)), list(range(1000, 1150))
    for ids in (long, other, long[:100]):  # after the last, the first costs 100 tokens, and was used before it
        put(store, prefixes, ids)
    for left in ([100, 150], [150], []):
        prefixes.evict()
        assert lengths(prefixes) == left


def test_keys_are_the_same_on_every_machine():
    """States that other machines have stored are found by digests of keys."""
    assert key_of([1, 0x203]).hex() == "0000000000000001" + "0000000000000203"


def reused(engine: Engine, ids: list[int], *, keep: bool = False, most: int = 1) -> int:
    """Answers a request. Returns how many tokens of its prompt were reused."""
    engine.add(Request(ids, SamplingParams(max_tokens=most), keep=keep))
    last = []
    while engine.busy:
        last += engine.step()
    return last[-1].reused


@pytest.mark.parametrize("attends", [False, True])
def test_a_third_prompt_begins_where_two_prompts_differ(attends):
    """An unmarked common prefix is computed twice; afterwards only its last tokens are computed again."""
    runner = Fake(12, 8, attends=attends, recurs=True, look_ahead=0, interval=1000)
    engine = Engine(runner)
    engine.prefixes._max_bytes = 1000
    shared = [n % 50 for n in range(PAGE + BY_CHANCE + 17)]
    stored = len(shared) - BY_CHANCE
    assert [reused(engine, [*shared, n, n + 1], keep=True) for n in range(1, 5)] == [0, 0, stored, stored]


def test_a_few_tokens_shared_by_chance_are_not_a_common_prefix():
    """Questions such as "What is" and "Where is" follow a long text. A third, less similar one also starts there."""
    engine = Engine(Fake(12, 8, attends=True, recurs=True, look_ahead=0, interval=1000))
    engine.prefixes._max_bytes = 1000
    text = [n % 50 for n in range(PAGE + BY_CHANCE + 17)]
    questions = [7, 7, 7, 1, 2], [7, 7, 7, 3], [7, 7, 4], [7, 5], [8]
    first, second, *others = [reused(engine, [*text, *question], keep=True) for question in questions]
    assert (first, second) == (0, 0)
    assert others == [len(text) + 3 - BY_CHANCE] * 3


@pytest.mark.parametrize("attends", [False, True])
@pytest.mark.parametrize("look_ahead", [0, 3])
def test_states_are_stored_along_answers_too(attends, look_ahead):
    """Otherwise the whole answer would be computed again after an edit."""
    interval = 20
    runner = Fake(12, 16, attends=attends, recurs=True, look_ahead=look_ahead, interval=interval)
    engine = Engine(runner)
    engine.prefixes._max_bytes = 1000
    engine.add(Request(list(range(10)), SamplingParams(max_tokens=CONTEXT - 30)))
    while engine.busy:
        engine.step()
    kept = [0, *lengths(engine.prefixes)]
    assert interval <= np.diff(kept)[0] <= 10 + interval + look_ahead
    assert max(np.diff(kept)) <= interval + look_ahead + 1
    assert kept[-1] >= CONTEXT - 30 - interval - look_ahead


def test_states_of_one_text_are_at_least_an_interval_from_each_other():
    runner = Fake(12, 64, attends=True, recurs=True, look_ahead=0, interval=2 * CHUNK)
    engine = Engine(runner)
    engine.prefixes._max_bytes = 1000
    reused(engine, [n % 50 for n in range(4 * CHUNK + 7)])
    assert lengths(engine.prefixes) == [2 * CHUNK, 4 * CHUNK]


@pytest.mark.parametrize("same", [0, 1, 2, 63, 64, 65, 127, 128, 191, 192, 193, 448, 1000])
def test_the_common_prefix_of_two_texts_is_counted_to_the_token(same):
    """The texts have tokens of several bytes, which may share bytes although the tokens differ."""
    beginning = key_of([(n << 20) + 5 for n in range(same)])
    for rest, other in [([], [7]), ([256], [257]), ([1 << 20], [2 << 20]), ([3] * 200, [4] + [3] * 500)]:
        a, b = beginning + key_of(rest), beginning + key_of(other)
        assert shared(a, b) == shared(b, a) == same
        assert shared(a, a) == same + len(rest)


@pytest.mark.parametrize(("read", "moves"), [(4, True), (5, False), (6, False)])
def test_a_sequence_moves_only_to_a_prefix_longer_than_what_it_has_read(read, moves):
    prefixes, adopted = StoredPrefixes.__new__(StoredPrefixes), []
    prefixes.cache = SimpleNamespace(find=lambda _: ("handle", 5))
    prefixes._store = SimpleNamespace(forget=lambda _: None, adopt=lambda *given: adopted.append(given))
    sequence = SimpleNamespace(slot=2, fed=read, read_end=9, key=lambda _: b"")
    assert prefixes.skip(sequence) is moves
    assert adopted == [(2, "handle", 5)] * moves and sequence.fed == (5 if moves else read)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=20), st.lists(st.integers(0, 2), max_size=7)
)
def test_the_index_finds_the_same_prefix_as_a_search_of_all(sequences, wanted):
    keys, key = {key_of(one) for one in sequences}, key_of(wanted)
    index = PrefixIndex()
    for one in keys:
        index.add(one)
    assert [*index.within(key)] == sorted((one for one in keys if key.startswith(one)), key=len, reverse=True)
    assert [*index.beginning_with(key)] == sorted(one for one in keys if one.startswith(key))
    nearest = index.nearest(key)
    assert (nearest[1] if nearest else None) == max((shared(one, key) for one in keys), default=None)
    assert not nearest or (nearest[0] in keys and shared(nearest[0], key) == nearest[1])


def test_thousands_of_entries_are_found_and_evicted_in_microseconds():
    """A comparison with 4,000 entries of 500 tokens once took 10 ms."""
    store = SequenceStore(None, StatePages(4100, 2), lambda copies, window=0: None)
    prefixes = PrefixCache(store, 1 << 30, 1, 1, 4000)
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 60_000, (4050, 500)).tolist()
    for text in texts:
        store.prepare(Batch.of([(0, 0, text)]))
        prefixes.store(text, store.keep(0, 500))
        store.forget(0)
    assert len(prefixes) == 4000

    def seconds(call) -> float:
        began = time.thread_time()
        call()
        return time.thread_time() - began

    assert sorted(seconds(lambda text=text: prefixes.find([*text, 0])) for text in texts[-99:])[50] < 1e-3
    assert sorted(seconds(prefixes.evict) for _ in range(99))[50] < 1e-3


@pytest.mark.long
@given(ids=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=40), first=st.integers(0, 40), data=st.data())
def test_keys_of_two_salts_agree_on_the_tokens_without_salt_only(ids, first, data):
    one, other = (
        Salt.of(text, first) for text in data.draw(st.lists(st.text(min_size=1), min_size=2, max_size=2, unique=True))
    )
    keys = [key_of(ids, salt) for salt in (PLAIN, one, other)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert shared(keys[a], keys[b]) == min(first, len(ids))
    at = data.draw(st.integers(0, len(ids)))
    assert key_of(ids[:at], one) + key_of(ids[at:], one, at) == keys[1]
    assert Salt.of("", 3) is PLAIN
