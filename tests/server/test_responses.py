"""The Responses API, embeddings, and the log probabilities of prompts, over HTTP."""

import base64
import json

import numpy as np
import pytest

from rwkv_gpu.server.errors import ApiError
from rwkv_gpu.server.response_input import items_of
from rwkv_gpu.server.stored_responses import StoredResponses

ASK = {"input": "Hi", "max_output_tokens": 6, "temperature": 0}


def text_of(response):
    [message] = [item for item in response["output"] if item["type"] == "message"]
    return message["content"][0]["text"]


def streamed(server, body):
    content = server.request("POST", "/v1/responses", {**body, "stream": True})[2].decode()
    blocks = [block.split("\n") for block in content.strip().split("\n\n")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [event.removeprefix("event: ") for event, _ in blocks] == [one["type"] for one in found]
    return found


def test_a_response_is_the_answer_of_a_chat(server):
    response = server.post("/v1/responses", {**ASK, "instructions": "Be brief.", "metadata": {"a": "b"}})
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    chat = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 6, "temperature": 0})
    assert text_of(response) == chat["choices"][0]["message"]["content"]
    assert response["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert (response["status"], response["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
    assert response["instructions"] == "Be brief."
    assert response["metadata"] == {"a": "b"}


def test_items_and_parts_are_the_same_as_texts(server):
    parts = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning"},
    ]
    assert text_of(server.post("/v1/responses", {**ASK, "input": parts})) == text_of(server.post("/v1/responses", ASK))


def test_events_build_the_response_in_order(server):
    found = streamed(server, ASK)
    assert [one["sequence_number"] for one in found] == [*range(len(found))]
    kinds = [one["type"].removeprefix("response.") for one in found]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    told = "".join(one["delta"] for one in found if one["type"] == "response.output_text.delta")
    assert told == text_of(found[-1]["response"]) == found[-4]["text"]
    [item] = found[-1]["response"]["output"]
    assert item == found[-2]["item"]


def test_reasoning_is_an_item_of_its_own(server, monkeypatch):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
    monkeypatch.setattr(server.llm, "chat_format", server.llm.chat_format_of(template))
    found = streamed(server, {**ASK, "regex": None})
    kinds = [one["type"] for one in found]
    assert "response.reasoning_text.delta" in kinds
    assert [item["type"] for item in found[-1]["response"]["output"]] == ["reasoning", "message"]
    added = [one["item"]["type"] for one in found if one["type"] == "response.output_item.added"]
    done = [one["output_index"] for one in found if one["type"] == "response.output_item.done"]
    assert (added, done) == (["reasoning", "message"], [0, 1])


CITY = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "weather", "parameters": {**CITY, "additionalProperties": False}}
CALLING = {**ASK, "max_output_tokens": 200, "tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_function_calls_are_items_in_whole_and_streamed_responses(server, choice):
    response = server.post("/v1/responses", {**CALLING, "tool_choice": choice})
    [call] = response["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
    assert json.loads(call["arguments"]) == {"city": "Rome"}
    assert (response["tools"], response["tool_choice"]) == ([WEATHER], choice)
    found = streamed(server, {**CALLING, "tool_choice": choice})
    kinds = [one["type"].removeprefix("response.") for one in found][2:]
    assert kinds == [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    added, delta, done, item, last = found[2:]
    assert added["item"]["arguments"] == "" and added["item"]["status"] == "in_progress"
    assert delta["delta"] == done["arguments"] == call["arguments"]
    assert {one["item_id"] for one in (delta, done)} == {added["item"]["id"]} == {item["item"]["id"]}
    assert last["response"]["output"] == [item["item"]]


def test_several_calls_are_an_item_each(server):
    found = streamed(server, {**CALLING, "parallel_tool_calls": True, "temperature": 1, "seed": 3})
    done = [one for one in found if one["type"] == "response.output_item.done"]
    assert [one["output_index"] for one in done] == [*range(len(done))]
    assert len({one["item"]["id"] for one in done}) == len({one["item"]["call_id"] for one in done}) == len(done)


def test_calls_and_their_outputs_are_accepted_as_input(server):
    question = {"role": "user", "content": "Hi"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    parts = [{"type": "input_text", "text": "rain"}]
    output = {"type": "function_call_output", "call_id": "call_1"}
    items = [question, call, {**call, "call_id": "call_2"}, {**output, "output": "rain"}, {**output, "output": parts}]
    body = {**ASK, "tools": [WEATHER]}
    calls = [
        {"id": id, "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        for id in ("call_1", "call_2")
    ]
    result = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    messages = [question, {"role": "assistant", "content": None, "tool_calls": calls}, result, result]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER["parameters"]}}]
    chat = server.post(
        "/v1/chat/completions", {"messages": messages, "tools": tools, "max_tokens": 6, "temperature": 0}
    )
    response = server.post("/v1/responses", {**body, "input": items})
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert text_of(response).strip() == (chat["choices"][0]["message"]["content"] or "").strip()


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [3]}, "tools"),
        ({"tools": 3}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "none"}}, "tool_choice"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": 3}]}, "messages"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": 3, "arguments": "{}"}]}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "message", "role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "file_search_call"}]}, "input"),
        ({"input": [3]}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"previous_response_id": 3}, "previous_response_id"),
        ({"store": "yes"}, "store"),
        ({"background": True}, "background"),
        ({"text": 3}, "text"),
        ({"max_output_tokens": -4}, "max_output_tokens"),
    ],
)
def test_impossible_options_are_refused(server, change, param):
    status, _, answer = server.request("POST", "/v1/responses", {**ASK, **change})
    assert (status, answer["error"]["param"]) == (400, param)


def test_a_response_continues_with_the_one_before_it(server):
    first = server.post("/v1/responses", ASK)
    assert server.get(f"/v1/responses/{first['id']}") == first
    more = {**ASK, "input": "And then?", "previous_response_id": first["id"]}
    second = server.post("/responses", more)
    assert second["previous_response_id"] == first["id"]
    asked = items_of(ASK["input"])
    whole = {**ASK, "input": [*asked, *first["output"], {"role": "user", "content": "And then?"}]}
    again = server.post("/v1/responses", {**whole, "store": False})
    assert second["usage"]["input_tokens"] == again["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    items = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    referred = server.post("/v1/responses", {**whole, "input": [*asked, *items, whole["input"][-1]], "store": False})
    assert referred["usage"]["input_tokens"] == again["usage"]["input_tokens"]
    lost = {**whole, "input": [{"type": "item_reference", "id": "msg_unknown"}]}
    assert server.request("POST", "/v1/responses", lost)[2]["error"]["code"] == "item_not_found"
    counted = server.post("/v1/responses/input_tokens", more)
    assert counted == {"object": "response.input_tokens", "input_tokens": second["usage"]["input_tokens"]}
    assert server.request("GET", f"/v1/responses/{again['id']}")[0] == 404
    [*_, last] = server.stream("/v1/responses", {**more, "previous_response_id": second["id"]})
    assert server.get(f"/v1/responses/{last['response']['id']}") == last["response"]
    assert server.request("DELETE", f"/v1/responses/{first['id']}")[2]["deleted"]
    assert server.request("GET", f"/v1/responses/{first['id']}")[0] == 404


def test_stored_responses_are_bounded_and_seen_by_their_owner_only():
    store = StoredResponses(most=2, max_bytes=1000)
    for number in range(3):
        store.add(b"me", {"id": f"resp_{number}", "output": [{"id": f"item_{number}"}]}, ["x"])
    store.add(b"me", {"id": "large", "output": []}, ["x" * 1000])
    for id, owner in (("item_0", b"me"), ("item_2", b"you"), (None, b"me"), ({"a": 1}, b"me")):
        with pytest.raises(ApiError, match="no item"):
            store.item(id, owner)
    assert store.item("item_2", b"me") == {"id": "item_2"}
    for id, owner in (("resp_0", b"me"), ("large", b"me"), ("resp_2", b"you")):
        with pytest.raises(ApiError) as refused:
            store.get(id, owner)
        assert refused.value.status == 404
    assert store.get("resp_2", b"me").items == ["x"]
    store.add(b"me", {"id": "half", "output": []}, ["x" * 960])
    for gone in (store.get, store.item):
        with pytest.raises(ApiError):
            gone({"get": "resp_2", "item": "item_2"}[gone.__name__], b"me")


def test_embeddings_equal_those_of_the_library_in_both_forms(server):
    texts = ["The sea", "A fish"]
    reply = server.post("/v1/embeddings", {"input": texts, "model": "quiet"})
    vectors = np.array([one["embedding"] for one in reply["data"]], np.float32)
    np.testing.assert_allclose(vectors, server.llm.embed(texts), atol=1e-6)
    assert reply["usage"]["prompt_tokens"] == sum(len(server.llm.tokenize(text)) for text in texts)
    packed = server.post("/v1/embeddings", {"input": texts, "encoding_format": "base64"})
    for one, vector in zip(packed["data"], vectors, strict=True):
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(one["embedding"]), "<f4"), vector)
    ids = [server.llm.tokenize(text) for text in texts]
    assert server.post("/v1/embeddings", {"input": ids})["data"] == reply["data"]
    short = [one["embedding"] for one in server.post("/v1/embeddings", {"input": texts, "dimensions": 3})["data"]]
    np.testing.assert_allclose(short, vectors[:, :3] / np.linalg.norm(vectors[:, :3], axis=1)[:, None], atol=1e-6)
    assert server.post("/api/embed", {"input": texts, "dimensions": 3})["embeddings"] == short


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": ""}, None), ({"input": []}, None), ({"input": ["a", 1.5]}, None), ({"input": None}, "input"),
        ({"dimensions": 0}, "dimensions"), ({"dimensions": 1 << 19}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"), ({"input": [10**9]}, None),
        ({"input": ["a"] * 3000}, "input"),
    ],
)  # fmt: skip
def test_wrong_embeddings_are_refused(server, change, param):
    status, _, answer = server.request("POST", "/v1/embeddings", {"input": "a", **change})
    assert status == 400
    assert param is None or answer["error"]["param"] == param


@pytest.mark.parametrize("most", [0, 1])
def test_log_probabilities_of_prompts_equal_those_of_the_library(server, most):
    ids = [server.llm.tokenize("The sea is wide"), server.llm.tokenize("A fish")]
    body = {"prompt": ids, "max_tokens": most, "logprobs": 1, "echo": True, "temperature": 0}
    for choice, prompt in zip(server.post("/v1/completions", body)["choices"], ids, strict=True):
        found = choice["logprobs"]["token_logprobs"]
        assert len(found) == len(prompt) + most
        np.testing.assert_allclose(found[1 : len(prompt)], server.llm.logprobs(prompt), atol=1e-5)
