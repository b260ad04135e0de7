"""Faults that must not harm a server: a bystander's stream runs during each, and must not change."""

import json
import socket

import pytest

from tests.server.bystander import BYSTANDER, TEXT, bystander
from tests.server.serving import load, serving

HI = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"


def nested(depth: int) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def schema(value: object) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": value}}}


DOUBLING = "root ::= a0\n" + "".join(f"a{n} ::= a{n + 1} a{n + 1}\n" for n in range(9000))  # without an end
REFUSED = {
    "n of a billion": (CHAT, {"n": 10**9}),
    "logprobs below 0": (TEXT, {"prompt": "a", "logprobs": -1}),
    "logprobs without end": (TEXT, {"prompt": "a", "logprobs": 10**9}),
    "empty prompt": (TEXT, {"prompt": ""}),
    "no prompts": (TEXT, {"prompt": []}),
    "an empty prompt among others": (TEXT, {"prompt": ["a", ""]}),
    "no messages": (CHAT, {"messages": []}),
    "negative temperature": (CHAT, {"temperature": -0.1}),
    "huge temperature": (CHAT, {"temperature": 1e308}),
    "infinite temperature": (CHAT, b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": 1e999}'),
    "NaN": (CHAT, b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": NaN}'),
    "seed beyond 64 bits": (CHAT, {"seed": 2**64}),
    "a token that is not there": (TEXT, {"prompt": [10**6]}),
    "a token below 0": (TEXT, {"prompt": [-1]}),
    "bias of a token that is not there": (CHAT, {"logit_bias": {"999999": 1}}),
    "bad regex": (CHAT, {"regex": "(("}),
    "grammar that is none": (CHAT, {"grammar": "root ::= ("}),
    "schema too deep": (CHAT, schema(nested(40))),
    "schema that is none": (CHAT, schema({"type": "king"})),
    "kwargs that override": (CHAT, {"chat_template_kwargs": {"messages": [], "add_generation_prompt": False}}),
    "kwargs too large": (CHAT, {"chat_template_kwargs": {"a": ["b" * 100] * 50_000}}),
    "kwargs too deep": (CHAT, {"chat_template_kwargs": nested(40)}),
    "a template in the request": (CHAT, {"chat_template": "{% for i in range(10**9) %}a{% endfor %}"}),
    "image": (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "URL"}}]}]}),
    "file": (CHAT, {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_url": "URL"}}]}]}),
    "a tool of another type": (CHAT, {"tools": [{"type": "retrieval"}]}),
    "a tool that is not an object": (CHAT, {"tools": ["weather"]}),
    "a tool whose name is none": (CHAT, {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    "a tool without schema": (CHAT, {"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}),
    "a tool_choice that names none": (CHAT, {"tool_choice": {"type": "function", "function": {"name": "a"}}}),
    "a grammar that is a bomb": (CHAT, {"grammar": DOUBLING}),
    "a schema that refers to itself": (CHAT, schema({"$ref": "#"})),
    "a schema from elsewhere": (CHAT, schema({"$ref": "URL"})),
    "many stop strings": (CHAT, {"stop": ["a" * 1000] * 10_000}),
    "processors": (CHAT, {"logits_processors": ["os.system"], "n": 0}),
    "invalid UTF-8": (CHAT, b'{"messages": "\xff"}'),
    "depth": (CHAT, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a number of a megabyte": (CHAT, b'{"n": ' + b"9" * 1_000_000 + b"}"),
    "suffix": (TEXT, {"prompt": "a", "suffix": "b"}),
    "stream that is not a boolean": (CHAT, {"stream": []}),
    "a time of no number": (TEXT, {"prompt": "a", "timeout": "5"}),
    "a time that is over": (TEXT, {"prompt": "a", "timeout": -1}),
    "a time that is a truth": (TEXT, {"prompt": "a", "timeout": True}),
    "resumable in words": (TEXT, {"prompt": "a", "resumable": "yes"}),
    "a role of a megabyte": (CHAT, {"messages": [{"role": "a" * 1_000_000, "content": "Hi"}]}),
    "a switch of mirostat": ("/completion", {"prompt": "a", "mirostat": "on"}),
    "biases in no pairs": ("/completion", {"prompt": "a", "logit_bias": [5]}),
    "a bias of a list": ("/completion", {"prompt": "a", "logit_bias": [[[5], 1]]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def alone():
    with serving() as server, bystander(server):
        yield server


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_requests_are_refused_while_other_requests_run(alone, name):
    path, change = REFUSED[name]
    with socket.create_server(("127.0.0.1", 0)) as stranger:  # its address appears in URLs
        stranger.setblocking(False)
        body = change
        if isinstance(change, dict):
            url = f"http://127.0.0.1:{stranger.getsockname()[1]}/a.png"
            body = json.loads(json.dumps({"messages": HI, "max_tokens": 2, **change}).replace("URL", url))
        status, _, answer = alone.request("POST", path, body)
        assert status in (400, 404)
        assert 0 < len(answer["error"]["message"]) <= 4000  # only a part of what was sent
        with pytest.raises(BlockingIOError):  # nothing was fetched
            stranger.accept()


def test_a_regex_that_would_be_huge_is_answered_or_refused(alone):
    body = {"messages": HI, "max_tokens": 2, "regex": "((((a{1,999}){1,999}){1,999}){1,999}){1,999}"}
    assert alone.request("POST", CHAT, body)[0] in (200, 400)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [10, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_different_schemas_are_answered(alone, count):
    for n in range(count):
        form = schema({"type": "object", "properties": {f"a{n}": {"type": "integer"}}, "required": [f"a{n}"]})
        body = {"messages": HI, "max_tokens": 1, **form}
        assert alone.request("POST", CHAT, body)[0] == 200


LOOPS = (
    "{% set n = times|default(1) %}{% for i in range(n) %}{% for j in range(n) %}{{ 'a' * n }}{% endfor %}{% endfor %}"
    "{{ messages[0].content }}"
)


def load_looping(path, progress):
    llm = load(path, progress)
    llm._metadata = {**llm._metadata, "tokenizer.chat_template": LOOPS}
    return llm


@pytest.mark.parametrize("kwargs", [{"times": 10**9}, {"times": 3000}])
def test_kwargs_that_make_a_template_loop_are_refused_while_other_requests_run(kwargs):
    with serving(load=load_looping) as server, bystander(server):
        body = {"messages": HI, "max_tokens": 2, "chat_template_kwargs": kwargs}
        status, _, answer = server.request("POST", CHAT, body)
        assert status == 400 and "template" in answer["error"]["message"]
        assert server.request("POST", CHAT, {**body, "chat_template_kwargs": {"times": 2}})[0] == 200


def test_a_byte_order_mark_before_a_body_is_accepted(alone):
    body = json.dumps({"messages": [{"role": "developer", "content": "Be brief."}, *HI], "max_tokens": 2})
    assert alone.request("POST", CHAT, b"\xef\xbb\xbf" + body.encode())[0] == 200


def test_texts_with_halves_of_characters_are_answered(alone):
    body = b'{"messages": [{"role": "user", "content": "a\\ud800b \\u0000"}], "max_tokens": 2}'
    assert alone.request("POST", CHAT, body)[0] == 200
    assert alone.request("POST", TEXT, b'{"prompt": "\\ud800", "echo": true, "max_tokens": 2}')[0] == 200


def test_clients_that_leave_at_any_moment_leave_nothing_behind():
    with serving() as server, bystander(server):
        body = json.dumps({**BYSTANDER, "n": 2, "temperature": 1}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        for cut in range(0, len(head) + len(body), 7):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall((head + body)[:cut])
        for read in range(30):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(head + body)
                connection.recv(1 + 40 * read)
