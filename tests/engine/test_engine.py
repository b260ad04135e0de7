"""The engine: a request among others says what it says alone, and every request ends with a reason."""

import numpy as np
import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.request import Request, Update
from rwkv_gpu.engine.runner import HostRunner, Runner, prefill
from rwkv_gpu.engine.sampling import Sampler, SamplingParams
from rwkv_gpu.errors import BadInput, BadNumbers, ContextFull, DeviceLost
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_model
from tests.golden_files import golden

TINY = ("tiny-rwkv7.gguf", "tiny-llama.gguf")


def on_host(name: str, **how) -> HostRunner:
    with GGUFFile.open(golden(name)) as file:
        return HostRunner(file, load_model(file), **{"slots": 4, "chunk_size": 16, "context": 128, "kv": "f32", **how})


@pytest.fixture(params=TINY)
def runner(request) -> HostRunner:
    return on_host(request.param)


def ids_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 250, count).tolist()


def drive(engine: Engine, steps: int = 10_000) -> dict[int, list[Update]]:
    """The news of all requests, by id, until none is left or so many steps were taken."""
    news: dict[int, list[Update]] = {}
    for _ in range(steps):
        if not engine.busy:
            break
        for update in engine.step():
            news.setdefault(update.id, []).append(update)
    return news


def tokens(updates: list[Update]) -> list[int]:
    return [said.token for update in updates for said in update.said]


def alone(runner: Runner, request: Request) -> list[int]:
    """What a request says by itself, token by token, without an engine."""
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
    """Prompts of 1 to 50 tokens, greedy and seeded."""
    return [
        Request(ids_of(1 + 13 * n % 50, n), SamplingParams(temperature=n % 2, seed=n, max_tokens=5 + n % 7))
        for n in range(count)
    ]


def test_a_request_among_16_says_what_it_says_alone(runner):
    asked = requests(16)
    expected = [alone(runner, request) for request in asked]
    engine = Engine(runner)
    ids = [engine.add(request) for request in asked[:9]]
    news = drive(engine, steps=4)
    ids += [engine.add(request) for request in asked[9:]]
    engine.abort(ids[3])
    for id, updates in drive(engine).items():
        news.setdefault(id, []).extend(updates)
    for n, id in enumerate(ids):
        said, last = tokens(news[id]), news[id][-1]
        if n == 3:
            assert last.finish_reason == "abort"
            assert said == expected[n][: len(said)]
        else:
            assert said == expected[n], n
            assert last.finish_reason == "length"
            assert last.prompt_done == last.prompt_tokens == len(asked[n].ids)


def test_no_step_has_more_rows_than_the_runner_takes(runner):
    engine, counts = Engine(runner), []
    inner = runner.step
    runner.step = lambda batch: counts.append(batch.rows) or inner(batch)
    for request in requests(8):
        engine.add(request)
    drive(engine)
    assert max(counts) == runner.chunk_size


def test_what_a_model_cannot_take_is_refused_with_the_numbers():
    engine = Engine(on_host("tiny-llama.gguf"))
    with pytest.raises(ContextFull, match="a prompt of 129 tokens does not fit the context of 128"):
        engine.add(Request(ids_of(129)))
    with pytest.raises(BadInput, match="no tokens"):
        engine.add(Request([]))
    with pytest.raises(BadInput, match="token id -1 at place 1"):
        engine.add(Request([5, -1]))
    assert not engine.busy


def test_a_full_context_ends_an_answer_by_its_length():
    engine = Engine(on_host("tiny-llama.gguf"))
    id = engine.add(Request(ids_of(125), SamplingParams(temperature=0, max_tokens=50)))
    full = engine.add(Request(ids_of(128), SamplingParams(temperature=0, max_tokens=50)))
    news = drive(engine)
    assert len(tokens(news[id])) == 3
    assert news[id][-1].finish_reason == "length"
    assert tokens(news[full]) == []
    assert news[full][-1].finish_reason == "length"


def test_a_stop_id_ends_an_answer_and_is_no_part_of_it(runner):
    request = Request(ids_of(9), SamplingParams(temperature=0, max_tokens=8))
    said = alone(runner, request)
    stop = said[4]
    engine = Engine(runner)
    id = engine.add(Request(request.ids, SamplingParams(temperature=0, max_tokens=8, stop_ids={stop})))
    news = drive(engine)[id]
    assert tokens(news) == said[: said.index(stop)]
    assert news[-1].finish_reason == "stop"


def test_numbers_that_are_none_end_one_request_and_leave_its_mates_as_they_are(runner):
    asked = requests(3)
    expected = [alone(runner, request) for request in asked]
    engine, inner = Engine(runner), runner.step

    def poisoned(batch):
        logits = inner(batch).copy()
        slots = {row: segment.slot for segment in batch.segments for row in range(segment.first, batch.rows)}
        for row, of in zip(logits, batch.outputs, strict=True):
            if slots[of] == 1:
                row[7] = np.nan
        return logits

    runner.step = poisoned
    ids = [engine.add(request) for request in asked]
    news = drive(engine)
    assert isinstance(news[ids[1]][-1].error, BadNumbers)
    assert news[ids[1]][-1].finish_reason == "error"
    assert [tokens(news[id]) for id in (ids[0], ids[2])] == [expected[0], expected[2]]


def test_a_lost_device_ends_every_request_and_refuses_new_ones(runner):
    engine = Engine(runner)

    def lost(_batch):
        raise DeviceLost("gone")

    ids = [engine.add(request) for request in requests(6)]
    drive(engine, steps=3)
    runner.step = lost
    news = drive(engine)
    assert all(news[id][-1].finish_reason == "error" and isinstance(news[id][-1].error, DeviceLost) for id in ids)
    assert not engine.busy
    with pytest.raises(DeviceLost):
        engine.add(Request([1]))
