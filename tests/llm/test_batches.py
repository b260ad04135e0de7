"""Many prompts, many answers to a prompt, many chats: each result equals that of a single request."""

import asyncio

import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadInput, Closed
from rwkv_gpu.llm.batches import AHEAD
from rwkv_gpu.llm.completion import ENDLESS, GREEDY, sampling
from tests.golden_files import OWN

PROMPTS = ["The sea", [5, 6, 7], "A hill"]
DRAWN = {"temperature": 1.0, "seed": 3, "max_tokens": 6}


@pytest.fixture(scope="module")
def llm():
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu", sequences=2, chunk_size=16) as llm:
        yield llm


def test_a_list_of_prompts_gives_the_same_answers_as_single_prompts(llm):
    alone = [llm.generate(prompt, **DRAWN).tokens for prompt in PROMPTS]
    assert [done.tokens for done in llm.generate(PROMPTS, **DRAWN)] == alone
    assert [done.tokens for done in asyncio.run(llm.agenerate(PROMPTS, **DRAWN))] == alone
    assert [done.tokens for done in llm.generate_batch(PROMPTS, **DRAWN)] == alone


def test_n_answers_have_consecutive_seeds(llm):
    alone = [llm.generate("The sea", **{**DRAWN, "seed": seed}).tokens for seed in (3, 4, 5)]
    assert len({*alone}) == 3
    assert [done.tokens for done in llm.generate("The sea", n=3, **DRAWN)] == alone
    assert [done.tokens for done in asyncio.run(llm.agenerate("The sea", n=3, **DRAWN))] == alone
    ([one],) = llm.generate(["The sea"], n=1, **DRAWN)
    assert one.tokens == alone[0]
    both = llm.generate(["The sea", "A hill"], n=3, **DRAWN)
    assert [done.tokens for done in both[0]] == alone and len(both[1]) == 3


def test_many_more_prompts_than_run_at_a_time_are_all_answered_in_order(llm):
    prompts = [[1 + n % 50] for n in range(3 * AHEAD * 2)]
    told = []
    done = llm.generate_batch(prompts, max_tokens=2, progress=lambda done, total: told.append((done, total)))
    assert [one.tokens for one in done] == [llm.generate(prompt, max_tokens=2).tokens for prompt in prompts]
    assert told == [(n + 1, len(prompts)) for n in range(len(prompts))]


def test_one_wrong_prompt_prevents_the_whole_batch(llm):
    with pytest.raises(BadInput, match="999999"):
        llm.generate(["The sea", [999999]], max_tokens=100_000)
    assert not llm._driver.call(lambda engine: engine.busy)
    assert llm.generate_batch([]) == []


def test_an_error_in_one_prompt_cancels_the_others(llm):
    def fails(ids, scores):
        if len(ids) > 3:
            raise ValueError("no more")
        return scores

    with pytest.raises(BadInput, match="no more"):
        llm.generate([[1], [1, 2]], max_tokens=1_000_000, logits_processors=fails)
    assert not llm._driver.call(lambda engine: engine.busy)


def test_a_batch_of_chats_gives_the_same_answers_as_single_chats(llm):
    talks = [
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
    ]
    alone = [llm.create_chat_completion(talk, **DRAWN)["choices"][0]["message"]["content"] for talk in talks]
    assert [done.text for done in llm.chat_batch(talks, **DRAWN)] == alone
    assert llm.chat_batch([]) == []
    with pytest.raises(BadInput, match="messages"):
        llm.chat_batch([talks[0], "Hi"])


def test_parameter_names_of_other_libraries_have_the_same_effect(llm):
    same = {
        "temp": ("temperature", 0.7), "repeat_penalty": ("repetition_penalty", 1.3),
        "max_new_tokens": ("max_tokens", 3),
        "n_predict": ("max_tokens", 3), "stop_token_ids": ("stop_ids", [5]), "repeat_last_n": ("penalty_last_n", 8),
        "repetition_context_size": ("penalty_last_n", 8),
    }  # fmt: skip
    for name, (ours, value) in same.items():
        settings = {"temperature": 1.0, "seed": 1, "max_tokens": 5}
        settings.pop(ours, None)
        assert (
            llm.generate("The sea", **settings, **{name: value}).tokens
            == llm.generate("The sea", **settings, **{ours: value}).tokens
        )
    assert llm.generate("The sea", top_k=-1, **DRAWN).tokens == llm.generate("The sea", **DRAWN).tokens
    endless = sampling(None, GREEDY, {"max_tokens": -1, "seed": -1})
    assert endless.max_tokens == ENDLESS and endless.seed is None


def test_logits_processors_choose_the_tokens(llm):
    def only_seven(ids, scores):
        assert len(ids) >= 2
        scores[:] = -1e9
        scores[7] = 0
        return scores

    assert llm.generate([1, 2], max_tokens=3, logits_processor=only_seven).tokens == (7, 7, 7)
    assert llm.generate([1, 2], max_tokens=1, logprobs=1, logits_processors=[only_seven]).tokens == (7,)


def test_objects_have_a_readable_repr(llm):
    assert repr(llm).startswith("<LLM 'tiny-rwkv7': rwkv7, ") and repr(llm).endswith("on cpu>")
    done = llm.generate("The sea", max_tokens=30)
    assert repr(done).startswith("Completion(") and "tokens=30, finish_reason='length')" in repr(done)
    assert done.truncated and not llm.generate("The sea", stop=done.text[:1], max_tokens=30).truncated
    with llm.stream("The sea", max_tokens=30) as generation:
        next(generation)
        assert "running" in repr(generation)
    assert "abort" in repr(generation)
    chat = llm.chat("Be brief.", template="chatml")
    assert repr(chat) == "<Chat: 1 message>"
    assert repr(chat.template).startswith("<ChatTemplate")
    assert "rwkv" in repr(llm.tokenizer).lower()


def test_a_closed_model_shows_it_and_refuses_lists():
    llm = rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu")
    llm.close()
    assert repr(llm).endswith("closed>")
    with pytest.raises(Closed):
        llm.generate(["a", "b"])


def test_a_chat_gives_several_answers_and_continues_from_the_first(llm):
    chat, other = (llm.chat(template="chatml", **DRAWN) for _ in range(2))
    [first, second] = chat.send("Hi", n=2)
    assert first.tokens == other.send("Hi").tokens
    assert second.tokens == llm.chat(template="chatml", **{**DRAWN, "seed": DRAWN["seed"] + 1}).send("Hi").tokens
    assert chat.messages == other.messages
    assert chat.send("Why?").tokens == other.send("Why?").tokens
    assert [done.tokens for done in asyncio.run(llm.chat(template="chatml", **DRAWN).asend("Hi", n=2))] == [
        first.tokens,
        second.tokens,
    ]
    with pytest.raises(BadInput, match="n is 0"):
        chat.send("Hi", n=0)


def test_a_batch_of_chats_in_asyncio_gives_the_same(llm):
    talks = [[{"role": "user", "content": text}] for text in ("Hi", "Why?")]
    found = asyncio.run(llm.achat_batch(talks, **DRAWN))
    assert [done.tokens for done in found] == [done.tokens for done in llm.chat_batch(talks, **DRAWN)]
