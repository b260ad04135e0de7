"""Tests of the engine: a request gets the same answer in a batch as alone, and every request ends with a reason."""

import gc
import itertools
import math
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine import host_runner as runners
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner, rows_on_host
from rwkv_gpu.engine.request import Request, Update
from rwkv_gpu.engine.runner import Runner, prefill
from rwkv_gpu.engine.sampling import Sampler, SamplingParams
from rwkv_gpu.engine.split import SplitRunner, parts_of
from rwkv_gpu.errors import BadFile, BadInput, BadNumbers, ContextFull, DeviceLost, OutOfMemory
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.sampling import Flag
from tests.golden_files import golden

TINY = ("tiny-rwkv7.gguf", "tiny-llama.gguf", "tiny-falcon-h1.gguf")  # a state, pages, both
BOTH = TINY[-1]


def small(name: str, adapter=None, **how) -> Runner:
    """A small model in numpy, or on an adapter."""
    how = {"slots": 4, "chunk_size": 16, "context": 256, "kv": "f32", **how}
    with GGUFFile.open(golden(name)) as file:
        if adapter is None:
            return HostRunner(file, load_model(file), **how)
        if adapter == "split":  # in two parts, both in numpy
            model = load_model(file)
            makers = [lambda share: HostRunner(file, model, share=share, **how)] * 2
            return SplitRunner(model, parts_of(model, [0, 1]), makers, **how)
        return GpuRunner(Device(adapter), file, load_model(file), **how)


@pytest.fixture(params=[*TINY, "split"])
def runner(request) -> Runner:
    return small(BOTH, "split") if request.param == "split" else small(request.param)


@pytest.fixture(params=[*itertools.product(TINY, ("cpu", "gpu")), (BOTH, "cpu", "split")], ids="-".join)
def any_runner(request, adapter) -> Iterator[Runner]:
    name, *where = request.param
    made = small(name, {"gpu": adapter, "split": "split"}.get(where[-1]))
    yield made
    made.close()


class Counting:
    """Records the rows of every step that an engine submits."""

    def __init__(self, runner: Runner) -> None:
        self.rows: list[int] = []
        self._inner = runner.submit
        runner.submit = self

    def __call__(self, batch, draws):
        self.rows.append(batch.rows)
        return self._inner(batch, draws)


def ids_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 250, count).tolist()


def drive(engine: Engine, steps: int = 10_000) -> dict[int, list[Update]]:
    """Returns the updates of all requests by id, until all have ended or `steps` steps were run."""
    news: dict[int, list[Update]] = {}
    for _ in range(steps):
        if not engine.busy:
            break
        for update in engine.step():
            news.setdefault(update.id, []).append(update)
    return news


def tokens(updates: list[Update]) -> list[int]:
    return [said.token for update in updates for said in update.sampled]


def alone(runner: Runner, request: Request) -> list[int]:
    """Returns the answer of a single request, token by token, without an engine."""
    sampler, ids = Sampler(request.params, runner.vocabulary), list(request.ids)
    sampler.accept_all(ids)
    logits = prefill(runner, ids)[-1]
    while len(ids) - len(request.ids) < request.params.max_tokens:
        token = sampler.sample(logits).token
        if token in request.params.stop_ids:
            break
        sampler.accept(token)
        ids.append(token)
        logits = prefill(runner, [token], start=len(ids) - 1)[-1]
    return ids[len(request.ids) :]


def requests(count: int) -> list[Request]:
    """Makes prompts of 1 to 61 tokens, greedy and seeded. Every second one ends near a page boundary."""
    return [
        Request(
            ids_of(1 + 3 * n if n % 2 else 62 - n, n), SamplingParams(temperature=n % 3, seed=n, max_tokens=5 + n % 9)
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("where", ["cpu", "gpu"])
@pytest.mark.parametrize("name", TINY)
def test_a_request_in_a_batch_of_16_gets_the_same_answer_as_alone(adapter, name, where):
    """Other requests join, are cancelled and, in models with pages, are preempted: 8 run in 4 pages."""
    asked, twin = requests(16), small(name)
    expected = [alone(twin, request) for request in asked]
    runner = small(name, adapter if where == "gpu" else None, slots=8, tokens=256, cache_bytes=0)
    engine, given = Engine(runner, look_ahead=2), []
    preempt = engine._slots.preempt
    engine._slots.preempt = lambda sequence: given.append(sequence.fed) or preempt(sequence)
    ids = [engine.add(request) for request in asked[:9]]
    news = drive(engine, steps=4)
    ids += [engine.add(request) for request in asked[9:]]
    engine.abort(ids[3])
    for id, updates in drive(engine).items():
        news.setdefault(id, []).extend(updates)
    for n, id in enumerate(ids):
        said, last = tokens(news.get(id, [])), news[id][-1]
        if n == 3:
            assert last.finish_reason == "abort"
            assert said == expected[n][: len(said)]
        else:
            assert said == expected[n], n
            assert last.finish_reason == "length"
            assert last.prompt_tokens == len(asked[n].ids)
    assert any(given) == bool(runner.model.caches), "some had begun and were computed again where pages ran out"
    runner.close()


def test_biases_and_log_probabilities_read_no_logits_back(any_runner):
    """The device samples all of them, steps are submitted ahead, and logits are read only if requested."""
    runner, bias = any_runner, {7: -math.inf, **dict.fromkeys(range(40, 90), 4.0)}
    ways = [
        {"temperature": 0, "logit_bias": bias},
        {"logit_bias": bias, "repetition_penalty": 1.3, "top_k": 20},
        {},
        {"temperature": 0, "logprobs": 3, "max_tokens": 4, "logit_bias": {5: 100.0}},
    ]
    asked = [
        Request(ids_of(9 + 4 * n, n), SamplingParams(**{"seed": n, "max_tokens": 16, **way}))
        for n, way in enumerate(ways)
    ]
    expected = [alone(runner, request) for request in asked]
    submitted, submit = [], runner.submit

    def noting(batch, sampling):
        submitted.append((len(sampling.rows), sampling.logits, bool((sampling.rows["flags"] & Flag.SKIP).any())))
        return submit(batch, sampling)

    runner.submit = noting
    engine = Engine(runner)
    ids = [engine.add(request) for request in asked]
    news = drive(engine)
    assert [tokens(news[id]) for id in ids] == expected
    assert expected[3] == [5] * 4
    assert not any(skipped for _, _, skipped in submitted)
    assert 4 <= sum(logits for _, logits, _ in submitted) <= 8  # the logits of the answer with log probabilities
    first, by_host = news[ids[3]], Sampler(asked[3].params, runner.vocabulary).sample(prefill(runner, asked[3].ids)[-1])
    said = next(said for update in first for said in update.sampled)
    assert [token for token, _ in said.top] == [token for token, _ in by_host.top]
    # Logits are around 1. Batches of another size add in another order.
    np.testing.assert_allclose([value for _, value in said.top], [value for _, value in by_host.top], atol=1e-4)


def test_no_step_has_more_rows_than_the_runner_takes(runner):
    engine, counting = Engine(runner), Counting(runner)
    for request in requests(8):
        engine.add(request)
    drive(engine)
    assert max(counting.rows) == runner.chunk_size


def test_a_step_in_numpy_is_short_however_long_the_prompt_is(monkeypatch):
    """Ctrl-C waits for the running step. A step of 512 rows of the built-in model took over a second."""
    model = small("tiny-rwkv7.gguf").model
    numbers = sum(math.prod(weight.shape[-2:]) for weight in model.weights if len(weight.shape) > 1)
    assert rows_on_host(model, 512, 1) == 512, "what is done soon is not cut"
    monkeypatch.setattr(runners, "STEP", 100 * numbers + 1)
    assert [rows_on_host(model, *asked) for asked in ((512, 4), (80, 4), (512, 200))] == [100, 80, 200]
    monkeypatch.setattr(runners, "STEP", 1)
    assert rows_on_host(model, 512, 1) == runners.MIN_ROWS, "numpy is slow on few rows"


def test_the_built_in_model_reads_a_prompt_in_steps_of_a_fraction_of_a_second():
    with rwkv_gpu.load(device="cpu") as llm:
        assert runners.MIN_ROWS <= llm.info.chunk_size <= 128
        read = []
        llm.generate("The sea. " * 200, max_tokens=1, on_prompt=lambda done, total: read.append(done))
    assert max(np.diff([0, *read])) <= 128


def test_requests_beyond_a_models_limits_are_refused_with_the_numbers():
    engine = Engine(small("tiny-llama.gguf"))
    with pytest.raises(ContextFull, match="a prompt of 257 tokens exceeds the available context size of 256"):
        engine.add(Request(ids_of(257)))
    with pytest.raises(BadInput, match="no tokens"):
        engine.add(Request([]))
    with pytest.raises(BadInput, match="token id -1 at place 1"):
        engine.add(Request([5, -1]))
    assert not engine.busy


def test_a_full_context_ends_an_answer_by_its_length():
    engine = Engine(small("tiny-llama.gguf"))
    id = engine.add(Request(ids_of(253), SamplingParams(temperature=0, max_tokens=50)))
    full = engine.add(Request(ids_of(256), SamplingParams(temperature=0, max_tokens=50)))
    news = drive(engine)
    assert len(tokens(news[id])) == 3
    assert news[id][-1].finish_reason == "length"
    assert tokens(news[full]) == []
    assert news[full][-1].finish_reason == "length"


def test_a_stop_id_ends_an_answer_and_is_not_part_of_it(runner):
    request = Request(ids_of(9), SamplingParams(temperature=0, max_tokens=8))
    said = alone(runner, request)
    stop = said[4]
    engine = Engine(runner)
    id = engine.add(Request(request.ids, SamplingParams(temperature=0, max_tokens=8, stop_ids={stop})))
    news = drive(engine)[id]
    assert tokens(news) == said[: said.index(stop)]
    assert news[-1].finish_reason == "stop"


def test_nan_ends_one_request_and_leaves_the_others_unchanged(any_runner):
    """The state, or the keys, of one sequence are NaN."""
    runner = any_runner
    asked = [Request(ids_of(9 + n, n), SamplingParams(temperature=0, max_tokens=9)) for n in range(3)]
    expected = [alone(runner, request) for request in asked]
    engine = Engine(runner)
    ids = [engine.add(request) for request in asked]
    news = drive(engine, steps=4)
    state = {name: np.full_like(array, np.nan) for name, array in runner.read_state(1).items()}
    length = runner.store.length(1)
    runner.write_state(1, length, state)
    for id, updates in drive(engine).items():
        news.setdefault(id, []).extend(updates)
    assert isinstance(news[ids[1]][-1].error, BadNumbers)
    assert news[ids[1]][-1].finish_reason == "error"
    assert [tokens(news[id]) for id in (ids[0], ids[2])] == [expected[0], expected[2]]
    assert len(engine.prefixes) == 0 or engine.prefixes.find(asked[1].ids) is None


def lost(*_given):
    raise DeviceLost("gone")


def full(*_given):
    raise OutOfMemory("no more")


def test_a_lost_device_ends_every_request_and_refuses_new_ones(runner):
    engine = Engine(runner)
    ids = [engine.add(request) for request in requests(6)]
    drive(engine, steps=3)
    runner.submit = lost
    news = drive(engine)
    assert all(news[id][-1].finish_reason == "error" and isinstance(news[id][-1].error, DeviceLost) for id in ids)
    assert not engine.busy
    with pytest.raises(DeviceLost):
        engine.add(Request([1]))


def test_a_device_closed_during_steps_counts_as_lost(adapter):
    runner = small("tiny-rwkv7.gguf", adapter)
    engine = Engine(runner)
    ids = [engine.add(request) for request in requests(3)]
    drive(engine, steps=4)
    runner.device.close()
    news = drive(engine, steps=20)
    assert {type(news[id][-1].error) for id in ids} == {DeviceLost}
    assert not engine.busy


def test_a_device_that_is_closed_is_freed(adapter):
    """The device closes with or without steps in flight. Its pipelines use most of the memory."""
    for steps in (1, 100):
        runner = small("tiny-llama.gguf", adapter)
        engine, handle = Engine(runner), weakref.ref(runner.device.handle)
        engine.add(Request(ids_of(5), SamplingParams(temperature=0, max_tokens=20)))
        drive(engine, steps=steps)
        runner.device.read(runner.device.buffer(16, "test"))
        engine.close()
        del engine, runner
        gc.collect()
        assert handle() is None


def test_memory_that_runs_out_ends_every_request_and_leaves_a_usable_engine(runner):
    request = requests(1)[0]
    expected = alone(small_twin(runner), request)
    engine, inner = Engine(runner), runner.submit
    free = runner.store.free
    ids = [engine.add(request) for request in requests(6)]
    drive(engine, steps=3)
    runner.submit = full
    news = drive(engine)
    assert all(isinstance(news[id][-1].error, OutOfMemory) for id in ids if id in news)
    assert runner.store.free == free
    runner.submit = inner
    id = engine.add(request)
    assert tokens(drive(engine)[id]) == expected


# ---------------------------------------------------------------- room


def test_a_preempted_request_gives_the_same_answer():
    """Three sequences grow to 2 pages each, in a memory of 4 pages."""
    asked = [Request(ids_of(50 + n, n), SamplingParams(temperature=n % 2, seed=n, max_tokens=25)) for n in range(3)]
    wide = small("tiny-llama.gguf", context=128)
    expected = [alone(wide, request) for request in asked]
    runner = small("tiny-llama.gguf", context=128, tokens=256, cache_bytes=0)
    engine, counting = Engine(runner), Counting(runner)
    ids = [engine.add(request) for request in asked]
    news = drive(engine)
    assert [tokens(news[id]) for id in ids] == expected
    assert sum(counting.rows) > sum(50 + n + 24 for n in range(3)), "nobody gave any page back"
    assert runner.store.free == (4, 0)


def test_requests_that_do_not_fit_together_take_turns():
    """A request grows to 2 pages, and the text needs 2. The memory has 2 pages, then 3."""
    asked = [Request(ids_of(60 + n, n), SamplingParams(temperature=n, seed=n, max_tokens=40)) for n in range(2)]
    wide, given = small("tiny-llama.gguf", context=128), ids_of(120)
    expected, logits = [alone(wide, request) for request in asked], prefill(wide, given, slot=1, every=True)
    for tokens_in_all in (128, 192):
        runner = small("tiny-llama.gguf", context=128, tokens=tokens_in_all, cache_bytes=0)
        engine, news, rows = Engine(runner), {}, []
        ids = [engine.add(request) for request in asked]
        pieces = [engine.evaluate(given), engine.evaluate(given)]
        while pieces or engine.busy:
            for piece in list(pieces):
                found = next(piece, None)
                rows += [found] if found is not None and len(found) else []
                if found is None:
                    pieces.remove(piece)
            for update in engine.step():
                news.setdefault(update.id, []).append(update)
        assert [tokens(news[id]) for id in ids] == expected
        np.testing.assert_allclose(np.concatenate(rows), np.concatenate([logits, logits]), atol=1e-4)
        assert runner.store.free == (tokens_in_all // 64, 0)


def test_stored_prefixes_are_evicted_before_a_request_is_preempted():
    runner = small("tiny-llama.gguf", context=128, tokens=256)
    engine, counting = Engine(runner), Counting(runner)
    for n in range(6):
        engine.add(Request(ids_of(100, n), SamplingParams(temperature=0, max_tokens=20)))
        drive(engine)
    assert sum(counting.rows) == 6 * 119
    assert len(engine.prefixes) == 3  # a full page each
    assert runner.store.free == (1, 0)


def test_100_aborted_requests_leave_every_page_free(runner):
    engine = Engine(runner)
    free = runner.store.free
    for n in range(100):
        id = engine.add(Request(ids_of(5 + n % 9, n), SamplingParams(temperature=0, max_tokens=9)))
        drive(engine, steps=n % 3)
        engine.abort(id)
    drive(engine)
    engine.prefixes.clear()
    assert runner.store.free == free


# ---------------------------------------------------------------- reuse


def test_each_turn_of_a_chat_computes_its_new_tokens_only(any_runner):
    """Only the new tokens are computed, and the last sampled token, which was never fed."""
    runner = any_runner
    engine, counting = Engine(runner), Counting(runner)
    ids = ids_of(40)
    params = SamplingParams(temperature=0, max_tokens=6)
    for turn in range(3):
        counting.rows.clear()
        expected = alone(small_twin(runner), Request(ids, params))
        id = engine.add(Request(ids, params, keep=True))
        news = drive(engine)[id]
        assert tokens(news) == expected, turn
        new = len(ids) if turn == 0 else 11 + 1
        assert news[0].reused == len(ids) - new
        assert new + 5 <= sum(counting.rows) <= new + 5 + 2  # up to 2 rows past the end are dropped
        ids = [*ids, *expected, *ids_of(11, seed=turn + 1)]


def small_twin(runner: Runner) -> Runner:
    model = runner.model
    return small(TINY[1] if not model.states else TINY[2] if model.caches else TINY[0])


def test_a_repeated_prompt_computes_one_token(runner):
    request = Request(ids_of(40), SamplingParams(temperature=0, max_tokens=6), keep=True)
    engine, counting = Engine(runner), Counting(runner)
    first = engine.add(request)
    said = tokens(drive(engine)[first])
    counting.rows.clear()
    again = engine.add(request)
    news = drive(engine)[again]
    assert (tokens(news), news[0].reused) == (said, 39)
    assert sum(counting.rows) == 6


def test_a_prompt_can_be_continued_differently_from_its_marks(runner):
    ids, other = ids_of(40), ids_of(12, 1)
    params = SamplingParams(temperature=0, max_tokens=4)
    engine = Engine(runner)
    engine.add(Request(ids, params, keep=True, marks=(30,)))
    drive(engine)
    id = engine.add(Request([*ids[:30], *other], params))
    news = drive(engine)[id]
    assert news[0].reused == 30
    assert tokens(news) == alone(small_twin(runner), Request([*ids[:30], *other], params))


@pytest.mark.parametrize("said", [0, 1, 4, 5, None])
def test_a_stopped_answer_counts_the_requested_tokens(runner, said):
    ids, params = ids_of(20), SamplingParams(temperature=0, max_tokens=30)
    engine, news = Engine(runner), []
    id = engine.add(Request(ids, params, keep=True))
    while len(tokens(news)) < 5:
        news += engine.step()
    engine.stop(id, said)
    [last] = drive(engine)[id]
    assert (last.finish_reason, last.sampled) == ("stop", ())
    again = Request([*ids, *tokens(news)[:said], *ids_of(3, 1)], SamplingParams(temperature=0, max_tokens=6))
    id = engine.add(again)
    after = drive(engine)[id]
    assert tokens(after) == alone(small_twin(runner), again)
    if said is None or said >= 4:
        assert after[0].reused >= len(again.ids) - 4  # all tokens except the new ones and the last sampled one


def test_another_engine_continues_from_an_exported_state(any_runner):
    runner = any_runner
    ids, params = ids_of(40), SamplingParams(temperature=0, max_tokens=6)
    first, second = Engine(runner), Engine(small_twin(runner))
    free = second._store.free
    id = first.add(Request(ids, params, keep=True))
    ids += tokens(drive(first)[id])
    assert first.export(ids_of(9, 5)) is None
    length, arrays = first.export(ids)
    assert length == len(ids) - 1
    second.restore(ids[:length], arrays)
    ids += ids_of(5, 1)
    id = second.add(Request(ids, params))
    news = drive(second)[id]
    assert news[0].reused == length
    assert tokens(news) == alone(small_twin(runner), Request(ids, params))
    with pytest.raises(BadFile, match="not one of 3 tokens"):
        second.restore(ids[:3], arrays | {"more": np.zeros(3)})
    second.prefixes.clear()
    assert second._store.free == free


def test_a_long_prompt_evicts_no_requested_prefix():
    room = 4 * sum(small("tiny-rwkv7.gguf").page_and_state_bytes)
    runner = small("tiny-rwkv7.gguf", cache_bytes=room, checkpoint_interval=16)
    engine = Engine(runner)
    params = SamplingParams(temperature=0, max_tokens=4)
    id = engine.add(Request(ids_of(20), params, keep=True))
    ids = ids_of(20) + tokens(drive(engine)[id])
    engine.add(Request(ids_of(200, 1), params))
    drive(engine)
    assert len(engine.prefixes) == 4
    assert engine.prefixes.find([*ids, 1])[1] == len(ids) - 1


# ---------------------------------------------------------------- samplers of all kinds


class Evens:
    """A grammar of four even tokens."""

    def __init__(self) -> None:
        self.said: list[int] = []

    @property
    def done(self) -> bool:
        return len(self.said) == 4

    def mask(self) -> np.ndarray:
        return np.full(2048, 0x55555555, np.uint32)[: -(-self.vocabulary // 32)]

    def accept(self, token: int) -> None:
        self.said.append(token)


def test_requests_sampled_on_host_and_device_and_with_grammars_share_steps(any_runner):
    runner = any_runner
    asked = {
        "device": Request(ids_of(9), SamplingParams(seed=1, top_k=40, max_tokens=12)),
        "penalised": Request(ids_of(30, 1), SamplingParams(seed=2, repetition_penalty=1.5, max_tokens=12)),
        "host": Request(ids_of(20, 2), SamplingParams(seed=3, typical_p=0.9, logprobs=3, max_tokens=12)),
        "grammar": Request(ids_of(7, 3), SamplingParams(seed=4, max_tokens=12), grammar=Evens()),
    }
    asked["grammar"].grammar.vocabulary = runner.vocabulary
    expected = {name: alone(runner, request) for name, request in asked.items() if request.grammar is None}
    engine = Engine(runner)
    ids = {name: engine.add(request) for name, request in asked.items()}
    news = drive(engine)
    for name, said in expected.items():
        assert tokens(news[ids[name]]) == said, name
    assert all(len(said.top) == 3 for update in news[ids["host"]] for said in update.sampled)
    evens = tokens(news[ids["grammar"]])
    assert evens == asked["grammar"].grammar.said
    assert len(evens) == 4 and all(token % 2 == 0 for token in evens)
    assert news[ids["grammar"]][-1].finish_reason == "stop"


class Broken(Evens):
    """A grammar that raises after two tokens."""

    def mask(self) -> np.ndarray:
        if len(self.said) == 2:
            raise BadInput("too deep")
        return super().mask()


def test_a_grammar_that_fails_ends_its_own_request(runner):
    mate = Request(ids_of(9), SamplingParams(seed=1, max_tokens=8))
    grammar = Broken()
    grammar.vocabulary = runner.vocabulary
    expected = alone(runner, mate)
    engine = Engine(runner)
    ids = engine.add(mate), engine.add(Request(ids_of(7, 3), SamplingParams(seed=4, max_tokens=8), grammar=grammar))
    news = drive(engine)
    assert tokens(news[ids[0]]) == expected
    last = news[ids[1]][-1]
    assert (last.finish_reason, str(last.error)) == ("error", "too deep")
    assert tokens(news[ids[1]]) == grammar.said and len(grammar.said) == 2


@pytest.mark.parametrize("runner", TINY, indirect=True)  # a split model submits no step ahead
@pytest.mark.parametrize("look_ahead", [0, 1, 2, 7, 15])
def test_the_look_ahead_changes_no_token(runner, look_ahead):
    runner.ahead = look_ahead  # although it needs no look-ahead
    asked = requests(3)
    expected = [alone(runner, request) for request in asked]
    engine = Engine(runner, look_ahead=look_ahead)
    ids = [engine.add(request) for request in asked]
    news = drive(engine)
    assert [tokens(news[id]) for id in ids] == expected


def test_looking_further_ahead_than_there_are_states_is_refused(runner):
    with pytest.raises(BadInput, match="look_ahead is 16; the model was loaded for 0 to 15"):
        Engine(runner, look_ahead=16)


def test_penalties_in_the_engine_look_back_on_exactly_the_last_n_tokens(any_runner):
    """Some steps are submitted ahead. The penalty window moves with every token."""
    asked = [
        Request(
            ids_of(9 + n, n), SamplingParams(temperature=0, presence_penalty=100.0, penalty_last_n=n, max_tokens=14)
        )
        for n in (1, 2, 5)
    ]
    # Prompts whose end the model repeats over and over, so that it appears again when it leaves the window.
    asked = [replace(request, ids=[*request.ids, *alone(any_runner, request)[:8]]) for request in asked]
    expected = [alone(any_runner, request) for request in asked]
    engine = Engine(any_runner)
    ids = [engine.add(request) for request in asked]
    news = drive(engine)
    assert [tokens(news[id]) for id in ids] == expected
    for request, said in zip(asked, expected, strict=True):
        every = [*request.ids, *said]
        n = request.params.penalty_last_n
        assert all(every[at] not in every[at - n : at] for at in range(len(request.ids), len(every)))


def test_of_unrequested_prefixes_the_least_recently_used_is_evicted_first():
    engine = Engine(small("tiny-llama.gguf"))
    prompts = [ids_of(70, seed) for seed in range(3)]
    for ids in prompts:
        engine.add(Request(ids, SamplingParams(temperature=0, max_tokens=1)))
        drive(engine)
    assert engine.prefixes.find(prompts[0]) is not None  # used again
    for gone in (1, 2, 0):
        engine.prefixes.evict()
        assert engine.prefixes.find(prompts[gone]) is None


@pytest.mark.parametrize(("seed", "slots"), [(5, 6), (36, 4)])
def test_every_request_has_one_last_update_where_pages_run_out(seed, slots):
    """An answer that the host samples ends while others of its step find no free pages. It must not be preempted."""
    engine = Engine(small("tiny-llama.gguf", slots=slots, tokens=256, cache_bytes=0))
    how = [SamplingParams(typical_p=0.9 if n % 2 else 1, seed=n, max_tokens=2 + (5 * n + seed) % 37) for n in range(16)]
    asked = [Request(ids_of(20 + (13 * seed + 11 * n) % 70, 10 * seed + n), params) for n, params in enumerate(how)]
    numbers = [engine.add(request) for request in asked]
    news = drive(engine)
    assert [sum(update.finish_reason is not None for update in news[number]) for number in numbers] == [1] * len(how)
    assert [len(tokens(news[number])) for number in numbers] == [params.max_tokens for params in how]


@pytest.mark.parametrize("name", [*TINY, "tiny-gemma3.gguf"])
def test_a_prompt_of_several_simultaneous_requests_is_computed_once(name):
    """This is the case with `n`: the answers differ, and a model without attention computes one more token for each."""
    ids = ids_of(180)
    asked = [Request(ids, SamplingParams(temperature=1, seed=n, max_tokens=3)) for n in range(4)]
    expected = [alone(small(name), request) for request in asked]
    runner = small(name)
    counting, engine = Counting(runner), Engine(runner, look_ahead=0)
    numbers = [engine.add(request) for request in asked]
    news = drive(engine)
    assert [tokens(news[number]) for number in numbers] == expected
    assert sum(counting.rows) < 180 + 3 * 64 + 4 * 3
    assert [news[number][-1].reused > 100 for number in numbers] == [False, True, True, True]


def test_if_nothing_is_stored_all_requests_begin_at_once():
    asked = [Request(ids_of(180), SamplingParams(seed=n, max_tokens=3)) for n in range(4)]
    engine = Engine(small(BOTH, cache_bytes=0), look_ahead=0)
    numbers = [engine.add(request) for request in asked]
    engine.step()
    assert engine.activity.running == 4
    assert {len(tokens(updates)) for number, updates in drive(engine).items() if number in numbers} == {3}
