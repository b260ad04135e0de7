"""A loaded model with many callers: threads, asyncio, batches, and evaluation of given texts."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.errors import BadFile, BadInput, Closed, ContextFull
from rwkv_gpu.gpu.adapters import list_adapters
from rwkv_gpu.llm.load_options import DeviceOptions
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.gguf.writer import I32, array_key, number, with_keys, written
from tests.golden_files import OWN
from tests.process import PATIENCE, until

DEVICE_OF = DeviceOptions.open
MODELS = ["tiny-rwkv7", "tiny-qwen3"]
PROMPTS = ["hello", "the a b c", "user", "hello world " * 8, "a", "日本"]


@pytest.fixture(params=["cpu", "gpu"])
def where(request, adapter):
    return "cpu" if request.param == "cpu" else str(adapter.index)


@pytest.fixture(params=MODELS)
def llm(request):
    with rwkv_gpu.load(OWN / f"{request.param}.gguf", device="cpu", sequences=4, context=None) as llm:
        yield llm


@pytest.mark.parametrize("name", MODELS)
def test_calls_from_many_threads_and_batches_give_the_same_answers_as_alone(where, name):
    with rwkv_gpu.load(OWN / f"{name}.gguf", device=where, sequences=4, context=256, kv="f32") as llm:
        alone = [llm.generate(prompt, max_tokens=9).tokens for prompt in PROMPTS]
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            threads = [*pool.map(lambda prompt: llm.generate(prompt, max_tokens=9).tokens, PROMPTS)]
        told = []
        batch = llm.generate_batch(PROMPTS, max_tokens=9, progress=lambda *counts: told.append(counts))
    assert threads == alone
    assert [done.tokens for done in batch] == alone
    assert told == [(n + 1, len(PROMPTS)) for n in range(len(PROMPTS))]


def test_asyncio_gives_the_same_answers_for_many_requests_at_a_time(llm):
    async def all_at_once():
        return await asyncio.gather(*(llm.agenerate(prompt, max_tokens=9) for prompt in PROMPTS))

    alone = [llm.generate(prompt, max_tokens=9).tokens for prompt in PROMPTS]
    assert [done.tokens for done in asyncio.run(all_at_once())] == alone


def test_a_task_that_is_cancelled_ends_its_answer_only(llm):
    async def cancel():
        events = []

        async def read():
            async for event in llm.astream("hello", max_tokens=10**6):
                events.append(event)

        task = asyncio.create_task(read())
        other = asyncio.create_task(llm.agenerate("hello", max_tokens=5))
        while not events:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await other

    assert len(asyncio.run(cancel()).tokens) == 5
    assert not llm._driver.call(lambda engine: engine.busy)


def test_a_closed_event_loop_does_not_disturb_other_requests(llm):
    async def leave():
        answer = llm.astream("hello", max_tokens=200)
        await answer.__anext__()
        return answer

    answer = asyncio.run(leave())
    assert len(llm.generate("hello", max_tokens=5).tokens) == 5
    answer.close()


def test_an_answer_keeps_a_dropped_model_open_until_it_is_read():
    answer = rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu").stream("hello", max_tokens=5)
    assert len(answer.wait().tokens) == 5


def test_a_dropped_model_ends_its_thread():
    before = {*threading.enumerate()}
    rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu").generate("hello", max_tokens=2)
    until(lambda: {*threading.enumerate()} <= before)


def test_a_closed_model_raises_closed(llm):
    llm.close()
    llm.close()
    for call in (lambda: llm.generate("a"), lambda: llm.logits([1]), lambda: llm.embed("a")):
        with pytest.raises(Closed, match="closed; load it again"):
            call()


# ---------------------------------------------------------------- texts that are given


def test_logprobs_and_perplexity_equal_those_of_the_logits(llm):
    ids = np.random.default_rng(1).integers(3, 260, 150).tolist()
    logits = llm.logits(ids).astype(np.float64)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    want = np.log(p[np.arange(149), ids[1:]])
    np.testing.assert_allclose(llm.logprobs(ids), want, atol=1e-4)
    assert llm.perplexity(ids) == pytest.approx(np.exp(-want.mean()), rel=1e-4)


def test_perplexity_by_windows_scores_every_token_once_after_half_a_window_at_least(llm):
    ids = np.random.default_rng(2).integers(3, 260, 41).tolist()
    scored = [llm.logprobs(ids[:16])]
    for start in (8, 16, 24):
        scored.append(llm.logprobs(ids[start : start + 16])[7:])
    scored.append(llm.logprobs(ids[32:])[7:])
    want = np.concatenate(scored)
    assert len(want) == 40
    assert llm.perplexity(ids, window=16) == pytest.approx(np.exp(-want.mean()), rel=1e-5)
    with pytest.raises(BadInput, match="window is 1"):
        llm.perplexity(ids, window=1)
    with pytest.raises(BadInput, match="at least 2"):
        llm.perplexity(ids[:1])


@pytest.mark.parametrize("name", MODELS)
def test_embeddings_have_length_one_and_are_the_same_in_any_chunks_and_on_any_device(where, name):
    texts = ["hello world " * 9, "a"]
    path = OWN / f"{name}.gguf"
    with rwkv_gpu.load(path, device="cpu", chunk_size=512) as llm:
        want = llm.embed(texts)
    with rwkv_gpu.load(path, device=where, chunk_size=8) as llm:
        rows = llm.embed(texts)
        np.testing.assert_allclose(llm.embed(texts[1]), rows[1], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(rows, want, atol=2e-3)  # keys and values are float16
    assert rows.shape == (2, {"tiny-rwkv7": 128, "tiny-qwen3": 256}[name])


def test_a_measurement_waits_for_its_turn_and_other_requests_continue(llm):
    answers = [llm.stream("hello", max_tokens=20) for _ in range(5)]
    assert llm.perplexity("hello world " * 8) > 1
    assert [len(answer.wait().tokens) for answer in answers] == [20] * 5


# ---------------------------------------------------------------- what does not fit


def test_a_prompt_that_is_too_long_is_refused_or_loses_its_beginning_on_request():
    with rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu", context=64) as llm:
        ids = np.random.default_rng(3).integers(3, 260, 100).tolist()
        with pytest.raises(ContextFull, match="100 tokens exceeds the available context size of 64"):
            llm.generate(ids)
        cut = llm.generate(ids, max_tokens=10, truncate="left")
        assert cut.stats.prompt_tokens == 54
        assert cut.tokens == llm.generate(ids[-54:], max_tokens=10).tokens
        assert llm.generate(ids, max_tokens=60, truncate="left").stats.prompt_tokens == 32
        assert llm.generate(ids[:5], max_tokens=10, truncate="left").stats.prompt_tokens == 5
        with pytest.raises(BadInput, match="truncate is 'right'"):
            llm.generate(ids, truncate="right")


def test_a_value_that_is_wrong_is_named():
    path = OWN / "tiny-rwkv7.gguf"
    for given, message in [
        ({"sequences": 0}, "sequences is 0; it must be a whole number from 1 to 256"),
        ({"context": "long"}, "context is 'long'"),
        ({"look_ahead": 17}, "look_ahead is 17"),
        ({"tokens": 0}, "tokens is 0"),
        ({"cache_bytes": -1}, "cache_bytes is -1"),
        ({"cache_bytes": "1"}, "cache_bytes is '1'"),
        ({"chunk_size": True}, "chunk_size is True"),
        ({"chunk_size": 2.5}, "chunk_size is 2.5"),
        ({"layers_per_submit": -1}, "layers_per_submit is -1"),
    ]:
        with pytest.raises(BadInput, match=message):
            rwkv_gpu.load(path, device="cpu", **given)
    with rwkv_gpu.load(path, device="cpu") as llm:
        with pytest.raises(BadInput, match="heat is not a setting"):
            llm.generate("a", heat=1)
        with pytest.raises(BadInput, match="params is a dict"):
            llm.generate("a", {})
        with pytest.raises(BadInput, match="stop_ids names token 999"):
            llm.generate("a", stop_ids=[999])
        with pytest.raises(BadInput, match="prompts is one text"):
            llm.generate_batch("abc")


def test_without_a_path_it_is_the_built_in_model_and_it_answers():
    with rwkv_gpu.load(device="cpu") as llm:
        assert llm.info.architecture == "rwkv7"
        chat = llm.chat(temperature=0, max_tokens=60)
        first = chat.send("Hello!")
        assert first.finish_reason == "stop"
        assert first.text and not first.text.startswith(" ")
        second = chat.send("What is your name?")
        assert second.stats.reused_tokens >= first.stats.prompt_tokens + len(first.tokens) - 1


def test_the_info_of_a_model_describes_it(llm):
    info = llm.info
    assert (info.vocabulary, info.device, info.sequences) == (288, "cpu", 4)
    assert info.parameters > 100_000
    assert info.context == (None if info.architecture == "rwkv7" else 1024)
    assert info.trained_context == 1024


def test_speeds_do_not_count_the_time_of_compiling(adapter, monkeypatch):
    record = GpuRunner._record

    slept = []

    def slowly(self, *key):
        time.sleep(0.2)
        slept.append(0.2)
        return record(self, *key)

    monkeypatch.setattr(GpuRunner, "_record", slowly)
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device=str(adapter.index)) as llm:
        began = time.perf_counter()
        stats = llm.generate("hello", max_tokens=3).stats
        wall = time.perf_counter() - began
    assert stats.prompt_seconds + stats.decode_seconds < wall - sum(slept)
    assert slept


def test_devices_are_listed_once_and_opened_while_the_file_is_read(adapter, monkeypatch):
    listed = Mock(wraps=list_adapters)
    monkeypatch.setattr("rwkv_gpu.gpu.adapters.list_adapters", listed)
    opened, read = threading.Event(), load_tokenizer

    def open_device(*arguments):
        opened.set()
        return DEVICE_OF(*arguments)

    def after_opening(metadata):
        assert opened.wait(PATIENCE)
        return read(metadata)

    monkeypatch.setattr("rwkv_gpu.llm.load_options.DeviceOptions.open", open_device)
    monkeypatch.setattr("rwkv_gpu.llm.loading.load_tokenizer", after_opening)
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device=str(adapter.index)):
        listed.assert_called_once()


def test_an_error_of_the_file_closes_the_device_that_is_being_opened(adapter, monkeypatch):
    opened = []
    monkeypatch.setattr(
        "rwkv_gpu.llm.load_options.DeviceOptions.open", lambda *one: opened.append(DEVICE_OF(*one)) or opened[0]
    )
    monkeypatch.setattr("rwkv_gpu.llm.loading.load_tokenizer", Mock(side_effect=BadFile("no tokenizer")))
    with pytest.raises(BadFile, match="no tokenizer"):
        rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device=str(adapter.index))
    assert [device.closed for device in opened] == [True]


def test_other_models_load_where_the_file_of_the_built_in_one_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr("rwkv_gpu.llm.load_options.builtin_model", lambda: tmp_path / "builtin.gguf")
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu") as llm:
        assert llm.generate("hello", max_tokens=2).tokens


def test_tokens_that_a_file_suppresses_are_never_written(tmp_path):
    """Gemma 4 and MiniMax-01 have such tokens, in texts and in chats. Ids beyond the vocabulary have no name."""
    plain, asked = (OWN / "tiny-qwen3.gguf").read_bytes(), {"max_tokens": 12, "temperature": 0}
    with rwkv_gpu.load(OWN / "tiny-qwen3.gguf", device="cpu", context=64) as llm:
        said = {*llm.generate("hello", **asked).tokens, *llm.generate("hello", **asked, logit_bias={7: 5}).tokens}
    ids = array_key("tokenizer.ggml.suppress_tokens", I32, [number(I32, one) for one in (*sorted(said), 1 << 20, -1)])
    path = written(tmp_path, with_keys(plain, [ids]))
    with rwkv_gpu.load(path, device="cpu", context=64) as llm:
        answers = [llm.generate("hello", **asked, logit_bias=bias).tokens for bias in ({}, {7: 5})]
        answers.append(llm.chat(template="chatml").send("hello", **asked).tokens)
        assert all(answer and said.isdisjoint(answer) for answer in answers)
        assert llm.generate("hello", max_tokens=1, temperature=0, logprobs=1).tokens == answers[0][:1]


def test_the_progress_of_loading_ends_with_the_size_of_the_weights():
    steps = []
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu", progress=lambda *step: steps.append(step)) as llm:
        assert llm.generate("a", max_tokens=1).tokens
    done, total = steps[-1]
    assert done == total > 100_000
