"""Completions and embeddings in the form of OpenAI's API equal the results of `generate` and `embed`."""

import asyncio
import base64
import inspect

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadInput
from tests.golden_files import OWN

GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def llm():
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu", sequences=4) as llm:
        yield llm


def test_a_completion_has_the_shape_that_clients_read(llm):
    reply = llm.create_completion("The sea", user="me", model="mine", **GREEDY)
    done = llm.generate("The sea", max_tokens=8)
    assert reply["object"] == "text_completion" and reply["id"].startswith("cmpl-") and reply["model"] == "mine"
    assert reply["choices"] == [{"index": 0, "text": done.text, "logprobs": None, "finish_reason": "length"}]
    assert reply["usage"]["completion_tokens"] == 8
    assert reply["usage"]["prompt_tokens"] == done.stats.prompt_tokens
    assert llm("The sea", **GREEDY)["choices"] == reply["choices"]
    assert len(llm("The sea")["choices"][0]["text"]) > 0
    assert asyncio.run(llm.acreate_completion("The sea", **GREEDY))["choices"] == reply["choices"]


def test_prompts_times_n_are_numbered_prompt_by_prompt(llm):
    settings = {"temperature": 1.0, "seed": 1, "max_tokens": 4}
    reply = llm.create_completion(["The sea", [5, 6]], n=2, echo=True, **settings)
    texts = [choice["text"] for choice in reply["choices"]]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    first, second = (llm.generate("The sea", **{**settings, "seed": seed}).text for seed in (1, 2))
    assert texts[:2] == ["The sea" + first, "The sea" + second]
    assert all(text.startswith(llm.detokenize([5, 6])) for text in texts[2:])
    assert reply["usage"]["completion_tokens"] == 16
    assert reply["usage"]["prompt_tokens"] == len(llm.tokenize("The sea", special=True)) + 2


def test_log_probabilities_are_listed_with_their_tokens_and_offsets(llm):
    [choice] = llm.create_completion("The sea", logprobs=2, **GREEDY)["choices"]
    found = choice["logprobs"]
    events = [event for event in llm.stream("The sea", logprobs=2, max_tokens=8) if event.token is not None]
    assert found["token_logprobs"] == [event.logprob for event in events]
    assert [len(top) for top in found["top_logprobs"]] == [2] * 8
    assert found["text_offset"][0] == 0 and found["text_offset"] == sorted(found["text_offset"])
    assert len(found["tokens"]) == 8


@pytest.mark.parametrize("most", [0, 8])
def test_with_echo_the_prompt_has_log_probabilities_too(llm, most):
    text = "The sea is wide, é and 海"
    prompt = llm.tokenize(text, special=True)
    [choice] = llm.create_completion(text, logprobs=2, echo=True, temperature=0, max_tokens=most)["choices"]
    found = choice["logprobs"]
    assert choice["text"].startswith(text)
    assert choice["finish_reason"] == "length"
    assert {len(column) for column in found.values()} == {len(prompt) + most}
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    np.testing.assert_allclose(found["token_logprobs"][1 : len(prompt)], llm.logprobs(prompt), atol=1e-9)
    logits = llm.logits(prompt)
    for at, top in enumerate(found["top_logprobs"][1 : len(prompt)]):
        assert max(top.values()) == pytest.approx(-np.log(np.exp(logits[at] - logits[at].max()).sum()), abs=1e-4)
    assert found["text_offset"] == sorted(found["text_offset"])
    assert found["text_offset"][len(prompt) :][:1] in ([], [len(text)])


@pytest.mark.parametrize("n", [1, 2])
def test_chunks_put_together_are_the_whole(llm, n):
    asked = {"prompt": "The sea", "n": n, "echo": True, "temperature": 1.0, "seed": 4, "max_tokens": 6}
    whole = llm.create_completion(**asked)

    async def chunks():
        return [chunk async for chunk in llm.astream_completion(**asked, stream_options={"include_usage": True})]

    for found in (
        list(llm.create_completion(**asked, stream=True, stream_options={"include_usage": True})),
        asyncio.run(chunks()),
    ):
        for choice in whole["choices"]:
            mine = [c for chunk in found for c in chunk["choices"] if c["index"] == choice["index"]]
            assert "".join(c["text"] for c in mine) == choice["text"]
            assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        assert found[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"] and not found[-1]["choices"]
        assert found[-1]["timings"]["predicted_n"] == whole["timings"]["predicted_n"]


def test_embeddings_equal_those_of_embed(llm):
    reply = llm.create_embedding(["The sea", "A hill"], model="mine")
    vectors = llm.embed(["The sea", "A hill"])
    assert reply["object"] == "list" and reply["model"] == "mine"
    assert np.allclose([item["embedding"] for item in reply["data"]], vectors)
    assert [item["index"] for item in reply["data"]] == [0, 1]
    tokens = sum(len(llm.tokenize(text, special=True)) for text in ("The sea", "A hill"))
    assert reply["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    [item] = asyncio.run(llm.acreate_embedding("The sea", encoding_format="base64"))["data"]
    alone = np.frombuffer(base64.b64decode(item["embedding"]), np.float32)
    np.testing.assert_allclose(
        alone, vectors[0], atol=1e-6
    )  # a step with one text sums in another order than one with two
    [ids] = llm.create_embedding(llm.tokenize("The sea", special=True))["data"]
    assert np.array_equal(np.array(ids["embedding"], np.float32), alone)


def test_an_answer_by_a_schema_shows_whether_it_was_cut_off(llm):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    [closed] = llm.create_completion("x", schema=schema, max_tokens=20)["choices"]
    assert closed["text"].endswith("}") and closed["finish_reason"] == "stop"
    [cut] = llm.create_completion("x", schema=schema, max_tokens=3)["choices"]
    assert cut["finish_reason"] == "length"


def test_a_chat_template_makes_ids_or_text(llm):
    messages = [{"role": "user", "content": "Hi"}]
    text = llm.apply_chat_template(messages, tokenize=False)
    assert text == "User: Hi\n\nAssistant:"
    assert llm.apply_chat_template(messages) == llm.tokenize(text, parse=True)
    assert not llm.apply_chat_template(messages, tokenize=False, add_generation_prompt=False).endswith("Assistant:")


def test_every_public_method_has_a_docstring():
    for name, member in inspect.getmembers(rwkv_gpu.LLM, callable):
        assert name.startswith("_") or inspect.getdoc(member), name


def test_a_request_has_a_limited_number_of_texts(llm):
    for call in (llm.prepare_completion, llm.prepare_embedding):
        with pytest.raises(BadInput, match="has 2,049 texts; send at most 2,048 at a time"):
            call(["a"] * 2049)
