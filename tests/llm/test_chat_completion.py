"""Chats in the form of OpenAI's API: chunks and whole replies agree, and errors name the wrong field."""

import asyncio

import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadInput, ContextFull
from rwkv_gpu.llm.replies import MAX_QUICK_ANSWERS
from rwkv_gpu.text.budget import Exceeded, Limits
from tests.golden_files import OWN, golden

HI = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
GREEDY = {"temperature": 0, "max_tokens": 8}
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
LIMITS = Limits(value=1 << 14, work=1 << 20, seconds=60)


@pytest.fixture(scope="module")
def llm():
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu", sequences=4) as llm:
        yield llm


def joined(chunks, index=0):
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(delta.get("content", "") for delta in deltas)


def test_a_reply_has_the_shape_that_clients_read(llm):
    reply = llm.create_chat_completion(messages=HI, **GREEDY)
    [choice] = reply["choices"]
    assert reply["object"] == "chat.completion"
    assert reply["id"].startswith("chatcmpl-")
    assert reply["model"] == llm.info.name
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    usage = reply["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8


def test_only_small_requests_are_prepared_within_limits():
    """Compiling a template takes time, and so do tools, forms and many answers."""
    large = {"n": MAX_QUICK_ANSWERS + 1}, {"tools": [TOOL]}, {"response_format": {"type": "json_object"}}
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu") as llm:
        with pytest.raises(Exceeded):
            llm.prepare_chat_completion(HI, limits=LIMITS)
        asked = llm.prepare_chat_completion(HI)
        assert llm.prepare_chat_completion(HI, n=MAX_QUICK_ANSWERS, limits=LIMITS).prompt_tokens == asked.prompt_tokens
        for more in large:
            with pytest.raises(Exceeded):
                llm.prepare_chat_completion(HI, limits=LIMITS, **more)
            assert llm.prepare_chat_completion(HI, **more).prompt_tokens
        assert llm.prepare_completion(["Hi", "Ho"], n=MAX_QUICK_ANSWERS // 2, limits=LIMITS).prompt_tokens
        for many in ({"n": MAX_QUICK_ANSWERS}, {"response_format": {"type": "json_object"}}):
            with pytest.raises(Exceeded):
                llm.prepare_completion(["Hi", "Ho"], limits=LIMITS, **many)


def test_a_prompt_in_chunks_gives_the_same_answer(llm):
    whole = llm.create_chat_completion(messages=HI, **GREEDY, n=3)
    chunks = [*llm.create_chat_completion(HI, stream=True, **GREEDY, n=3, stream_options={"include_usage": True})]
    for index, choice in enumerate(whole["choices"]):
        assert joined(chunks, index) == choice["message"]["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks[-4:-1]] == ["length"] * 3
    last = [choice for chunk in chunks[-4:-1] for choice in chunk["choices"]]
    assert sorted((choice["index"], len(choice["delta"])) for choice in last) == [(0, 0), (1, 0), (2, 0)]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 24
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_asyncio_gives_the_same_answer(llm):
    async def both():
        whole = await llm.acreate_chat_completion(HI, **GREEDY)
        return whole, [chunk async for chunk in llm.astream_chat_completion(HI, **GREEDY)]

    whole, chunks = asyncio.run(both())
    assert joined(chunks) == whole["choices"][0]["message"]["content"]


def test_logprobs_are_reported_token_by_token(llm):
    asked = {**GREEDY, "logprobs": True, "top_logprobs": 2}
    told = llm.create_chat_completion(HI, **asked)["choices"][0]["logprobs"]["content"]
    assert len(told) == 8
    for one in told:
        assert one["logprob"] == pytest.approx(one["top_logprobs"][0]["logprob"])  # greedy takes the most likely token
        assert bytes(one["bytes"]).decode("utf-8", "replace") == one["token"]
        assert len(one["top_logprobs"]) == 2
    chunks = llm.create_chat_completion(HI, stream=True, **asked)
    streamed = [one for chunk in chunks for c in chunk["choices"] if c["logprobs"] for one in c["logprobs"]["content"]]
    assert streamed == told


def test_answers_of_one_seed_differ_from_each_other_and_are_reproducible(llm):
    asked = {"temperature": 1.0, "seed": 5, "n": 2, "max_tokens": 12}
    first, second = (llm.create_chat_completion(HI, **asked)["choices"] for _ in range(2))
    assert [c["message"] for c in first] == [c["message"] for c in second]
    assert first[0]["message"] != first[1]["message"]


@pytest.mark.parametrize("biases", [{"33": 100.0}, {33: 100.0}, [[33, 100.0]], [["33", 100.0], [34, False]]])
def test_biases_are_a_map_or_pairs(llm, biases):
    llm.create_chat_completion(HI, temperature=0, max_tokens=3, logit_bias=biases)
    assert llm._recent[-1].transcript.ids[-3:] == (33, 33, 33)


def test_a_bias_of_false_bans_a_token(llm):
    llm.create_chat_completion(HI, temperature=0, max_tokens=3, logit_bias={"33": 100.0, "34": 200.0, 35: False})
    assert llm._recent[-1].transcript.ids[-3:] == (34, 34, 34)
    llm.create_chat_completion(HI, temperature=0, max_tokens=3, logit_bias=[[33, 100.0], [34, False]])
    assert llm._recent[-1].transcript.ids[-3:] == (33, 33, 33)


def test_the_next_prompt_continues_with_the_generated_ids(llm):
    reply = llm.create_chat_completion(HI, temperature=0, max_tokens=3, logit_bias={"33": 100.0})  # a space each time
    said = llm._recent[-1].transcript
    assert said.ids[-3:] == (33, 33, 33)
    again = [*HI, reply["choices"][0]["message"], {"role": "user", "content": "So?"}]
    prompt = llm.chat_format.prompt(again, [said]).transcript.ids
    shared = next((i for i, (a, b) in enumerate(zip(said.ids, prompt, strict=False)) if a != b), len(said.ids))
    assert shared > len(said.ids) - 3


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"n": 0}, "n is 0"),
        ({"n": True}, "n is True"),
        ({"logprobs": 3}, "logprobs is 3"),
        ({"top_logprobs": 3}, "logprobs is not true"),
        ({"temperature": -1}, "temperature is -1"),
        ({"max_completion_tokens": -2}, "max_tokens is -2"),
        ({"logit_bias": {"x": 1}}, "logit_bias is"),
        ({"logit_bias": {"999": 1}}, "logit_bias names token 999"),
        ({"frobnicate": 1}, "frobnicate is not a setting"),
    ],
)
def test_errors_are_named(llm, wish, message):
    with pytest.raises(BadInput, match=message):
        llm.create_chat_completion(HI, **wish)


def test_messages_are_checked(llm):
    for messages in ([], "Hi", [{"role": "nobody", "content": "x"}], [{"role": "user"}]):
        with pytest.raises(BadInput, match="messages"):
            llm.create_chat_completion(messages)


def test_messages_that_are_too_long_are_refused_with_both_numbers():
    with (
        rwkv_gpu.load(golden("qwen3-small-Q8_0.gguf"), device="cpu", context=16) as llm,
        pytest.raises(ContextFull, match=r"a prompt of \d+ tokens exceeds the available context size of 16"),
    ):
        llm.create_chat_completion([{"role": "user", "content": "Hello " * 20}])
