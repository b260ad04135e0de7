"""OpenAI's API over HTTP returns the library's results, whole and streamed."""

import pytest

from tests.server.serving import events

HI = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": HI, "max_tokens": 6, "temperature": 0}
TEXT = {"prompt": "The sea", "max_tokens": 6, "temperature": 0}


def told(chunks, index=0):
    """Returns the text of an answer from its chunks."""
    deltas = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(delta["delta"].get("content") or "" if "delta" in delta else delta["text"] for delta in deltas)


def but_for_ids(reply):
    return {name: value for name, value in reply.items() if name not in ("id", "created", "usage", "timings")}


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_an_answer_equals_that_of_the_library(server, path, body):
    if "messages" in body:
        expected = server.llm.create_chat_completion(**body, model="quiet")
    else:
        expected = server.llm.create_completion(**body, model="quiet")
    reply = server.post(path, {**body, "model": "quiet"})
    assert but_for_ids(reply) == but_for_ids(expected)
    assert reply["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_a_stream_is_the_whole_answer_in_chunks(server, path, body):
    whole = server.post(path, body)["choices"][0]
    *chunks, done = server.stream(path, body)
    assert done == "[DONE]"
    assert told(chunks) == (whole["message"]["content"] if "message" in whole else whole["text"])
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_stream_of_nothing_but_the_prompt_is_a_stream(server):
    found = server.stream("/v1/completions", {**TEXT, "echo": True, "max_tokens": 0})
    assert told(found[:-1]) == TEXT["prompt"] and found[-1] == "[DONE]"


def test_every_answer_of_several_is_streamed_under_its_index(server):
    body = {**CHAT, "n": 3, "temperature": 1, "seed": 5}
    whole = server.post("/v1/chat/completions", body)["choices"]
    *chunks, _ = server.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert [told(chunks, index) for index in range(3)] == [choice["message"]["content"] for choice in whole]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 18
    assert chunks[-1]["timings"]["predicted_n"] == 6  # of the first answer, as in a response that is not streamed


def test_logprobs_are_in_the_chunks(server):
    *chunks, _ = server.stream("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2})
    found = [
        one
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for one in choice["logprobs"]["content"]
    ]
    assert len(found) == 6
    assert all(len(one["top_logprobs"]) == 2 for one in found)


def test_models_are_listed_and_named(server):
    [model] = server.get("/v1/models")["data"]
    assert model["id"] == "quiet"
    assert server.get("/v1/models/quiet") == model


@pytest.mark.parametrize("name", ["nothing", "../../etc/passwd", "quiet/../quiet"])
def test_an_unknown_model_is_refused_with_the_list(server, name):
    for method, path, body in [
        ("POST", "/v1/chat/completions", {**CHAT, "model": name}), ("GET", f"/v1/models/{name}", None),
    ]:  # fmt: skip
        status, _, answer = server.request(method, path, body)
        assert status == 404
        assert answer["error"]["code"] == "model_not_found"
        assert "quiet" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 10**9}, "n"),
        ({"n": "2"}, "n"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 10**9}, "logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 1e300}, "temperature"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "king", "content": "Hi"}]}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"model": 3}, "model"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"audio": {"voice": "a"}}, "audio"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(server, change, param):
    status, headers, answer = server.request("POST", "/v1/chat/completions", {**CHAT, **change})
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param
    assert answer["error"]["request_id"] == headers["x-request-id"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"nonsense", b'{"messages": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 500 + b"1" + b"}" * 500,
     b'{"max_tokens": ' + b"9" * 10_000 + b"}", b"[" * 200 + b"]" * 200],
)  # fmt: skip
def test_a_body_that_is_not_a_json_object_is_refused(server, body):
    status, _, answer = server.request("POST", "/v1/chat/completions", body)
    assert status == 400
    assert answer["error"]["message"].startswith("the body")


def test_fields_that_do_nothing_are_named_in_a_header(server):
    status, headers, _ = server.request("POST", "/v1/chat/completions", {**CHAT, "store": True, "temprature": 1})
    assert status == 200
    assert headers["x-ignored-fields"] == "store, temprature"


def test_an_unknown_path_or_method_is_an_error_of_the_same_shape(server):
    for method, path, expected in [("GET", "/v1/nothing", 404), ("DELETE", "/v1/models", 405)]:
        status, headers, answer = server.request(method, path)
        assert (status, headers.get("allow")) == (expected, "GET, HEAD" if expected == 405 else None)
        assert answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/score"), ("POST", "/v1/audio/speech"), ("GET", "/v1/uploads"), ("DELETE", "/v1/fine_tuning/jobs/a")],
)
def test_unsupported_fields_are_refused_with_a_reason(server, method, path):
    status, _, answer = server.request(method, path, {} if method == "POST" else None)
    assert (status, answer["error"]["code"]) == (501, "not_supported")


def test_a_stream_that_cannot_begin_is_an_error_and_no_stream(server):
    status, headers, answer = server.request("POST", "/v1/chat/completions", {**CHAT, "n": 0, "stream": True})
    assert status == 400
    assert headers["content-type"] == "application/json"
    assert answer["error"]["param"] == "n"


def test_an_answer_can_have_a_schema(server):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["sea", "sky"]}}}
    reply = server.post("/v1/chat/completions", {**CHAT, "response_format": form, "max_tokens": 20})
    assert reply["choices"][0]["message"]["content"] in ('"sea"', '"sky"')


def test_a_wrong_schema_is_refused_before_a_stream_begins(server):
    body = {**CHAT, "stream": True, "regex": "(("}
    status, _, answer = server.request("POST", "/v1/chat/completions", body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"


def test_a_request_has_the_id_that_it_came_with(server):
    _, headers, answer = server.request("POST", "/v1/completions", {}, x_request_id="mine-1")
    assert headers["x-request-id"] == answer["error"]["request_id"] == "mine-1"
    _, headers, _ = server.request("POST", "/v1/completions", {}, x_request_id="no spaces")
    assert headers["x-request-id"].startswith("req_")


def test_several_answers_come_over_one_connection(server):
    connection = server.connect()
    for _ in range(3):
        connection.request("POST", "/v1/completions", '{"prompt": "a", "max_tokens": 2, "stream": true}')
        assert events(connection.getresponse().read())[-1] == "[DONE]"
    connection.close()
