"""Almost valid request bodies for every API: none of them causes an internal server error."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.server.catalogue import ServedModel
from tests.server.serving import Served, serving

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PARTS = [{"type": "text", "text": "hi"}]
SOUND: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "a"}, {"role": "user", "content": PARTS},
            {"role": "assistant", "content": "x", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "5"}, {"role": "user", "content": "hello"},
        ],
        "tools": [TOOL], "tool_choice": "auto", "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "top_k": 4,
        "seed": 1, "n": 1, "stop": ["x"], "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2,
        "stream_options": {"include_usage": True}, "chat_template_kwargs": {"a": 1}, "metadata": {"a": "b"},
    },
    "/v1/completions": {"prompt": ["hi", "ho"], "max_tokens": 1, "echo": True, "logprobs": 1, "stop": "a"},
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], "instructions": "a",
        "max_output_tokens": 16, "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "text": {"format": {"type": "text"}}, "store": False, "reasoning": {"effort": "low"},
    },
    "/v1/messages": {
        "model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": PARTS}], "system": PARTS,
        "stop_sequences": ["x"], "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "none"}, "thinking": {"type": "disabled"}, "metadata": {"user_id": "a"},
    },
    "/v1/messages/count_tokens": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "/api/chat": {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": False, "keep_alive": "5m",
        "options": {"num_predict": 1, "temperature": 0.1, "stop": ["a"], "seed": 1}, "think": False,
    },
    "/api/generate": {"model": "m", "prompt": "hi", "raw": True, "stream": False, "options": {"num_predict": 1}},
    "/api/embed": {"model": "m", "input": ["a", "b"], "truncate": True},
    "/api/show": {"model": "m"},
    "/completion": {"prompt": "a", "n_predict": 1, "stop": ["a"], "logit_bias": {"5": 1}, "n_probs": 2},
    "/tokenize": {"content": "hi", "add_special": True, "with_pieces": True},
    "/detokenize": {"tokens": [5, 6]},
    "/apply-template": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/embeddings": {"input": ["hi", [5, 6]], "encoding_format": "base64", "model": "m"},
}  # fmt: skip
HOSTILE: tuple[Any, ...] = (
    None, -1, 0, 1 << 63, 10**30, 1.5, 1e308, 5e-324, "x", "", "\ud800", "\0", "{{", [], {}, [None], [[]], [{}], True,
    False, {"a": None}, {"type": "x"}, {"type": []}, {"$ref": "#"}, {"\ud800": 1}, [-1], [1 << 63],
    ["\ud83d"], ["a"] * 300,
)  # fmt: skip
COUNT = 150  # of some 2,500


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Returns the paths of all values in a body."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def changed(body: Any, at: tuple[Any, ...], value: Any) -> Any:
    """Returns the body with another value in one place."""
    if not at:
        return value
    whole = inner = copy.deepcopy(body)
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return whole


CASES = [(path, at, n) for path, body in SOUND.items() for at in places(body) for n in range(len(HOSTILE))]


@pytest.fixture(scope="module")
def built_in() -> Iterator[Served]:
    def load(path: str, _: Any) -> rwkv_gpu.LLM:
        return rwkv_gpu.load(path, device="cpu", sequences=2)

    with serving(ServedModel("m", str(builtin_model())), load=load) as served:
        yield served


@pytest.mark.parametrize("path", SOUND)
def test_valid_bodies_are_answered(built_in, path):
    assert built_in.request("POST", path, SOUND[path])[0] == 200


def try_all(built_in: Served, cases: list[tuple[str, tuple[Any, ...], int]]) -> None:
    for path, at, number in cases:
        body = changed(SOUND[path], at, HOSTILE[number])
        status, _, content = built_in.request("POST", path, json.dumps(body).encode())
        assert status < 500 or status == 501, (path, at, HOSTILE[number], content)
    assert built_in.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
    assert not built_in.engine.busy


def test_an_invalid_value_is_refused_or_ignored_in_every_field(built_in):
    try_all(built_in, random.Random(5).sample(CASES, COUNT))
    unhashable = HOSTILE.index({"type": []})
    try_all(built_in, [case for case in CASES if case[1][-1:] == ("tool_choice",) and case[2] == unhashable])


@pytest.mark.parametrize("given", ["[" * 20_000, "{", "5", "", "\ud800"])
def test_arguments_of_an_earlier_call_may_be_any_text(built_in, given):
    at = ("messages", 2, "tool_calls", 0, "function", "arguments")
    body = changed(SOUND["/v1/chat/completions"], at, given)
    assert built_in.request("POST", "/v1/chat/completions", json.dumps(body).encode())[0] in (200, 400)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_invalid_value_is_refused_or_ignored_in_every_field(built_in):
    try_all(built_in, CASES)
