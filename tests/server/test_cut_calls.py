"""A tool call that the length limit cuts off is an incomplete call in every API, never text with raw markup."""

import json
from dataclasses import dataclass
from functools import partial

import pytest

from rwkv_gpu.text.tool_calls import FORMS
from tests.clients.scripted import Script
from tests.server.serving import events, serving
from tests.text.test_tool_calls import WRITTEN

pytestmark = pytest.mark.long
MARKS = {form.name: mark for mark, form in reversed(FORMS)} | {"generic": ""}  # by form: the mark of its template
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
CHANNELS = ' to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Rome", "days": 2}<|call|>'
SAID = {name: one for name, (one, _) in WRITTEN.items()} | {"harmony": CHANNELS}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"name": "weather", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": WEATHER}]
HI = [{"role": "user", "content": "Hi"}]


@dataclass
class Answer:
    """What a client reads in an answer, by any API."""

    text: str
    name: str
    arguments: str
    cut: bool


def chat(ask, most, stream):
    found = ask("/v1/chat/completions", {"messages": HI, "tools": TOOLS, "max_tokens": most, "stream": stream})
    if not stream:
        [choice] = found["choices"]
        [call] = choice["message"]["tool_calls"]
        text, function = choice["message"]["content"] or "", call["function"]
        return Answer(text, function["name"], function["arguments"], choice["finish_reason"] == "length")
    choices = [one["choices"][0] for one in found if one != "[DONE]" and one["choices"]]
    calls = [call["function"] for one in choices for call in one["delta"].get("tool_calls", ())]
    text = "".join(one["delta"].get("content") or "" for one in choices)
    arguments = "".join(call["arguments"] for call in calls)
    return Answer(text, calls[0]["name"], arguments, choices[-1]["finish_reason"] == "length")


def responses(ask, most, stream):
    tools = [{"type": "function", **WEATHER}]
    found = ask("/v1/responses", {"input": "Hi", "tools": tools, "max_output_tokens": most, "stream": stream})
    response = found[-1]["response"] if stream else found
    *before, call = response["output"]
    if stream:
        deltas = [one["delta"] for one in found if one["type"] == "response.function_call_arguments.delta"]
        assert "".join(deltas) == call["arguments"]
        assert found[-1]["type"] == "response.incomplete"
    text = "".join(part["text"] for one in before for part in one["content"])
    cut = call["status"] == response["status"] == "incomplete"
    return Answer(text, call["name"], call["arguments"], cut)


def anthropic(ask, most, stream):
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    found = ask("/v1/messages", {"messages": HI, "tools": tools, "max_tokens": most, "stream": stream})
    if not stream:
        *before, use = found["content"]
        assert use["input"] == {}
        text = "".join(part["text"] for part in before)
        return Answer(text, use["name"], "", found["stop_reason"] == "max_tokens")
    blocks = [one["content_block"] for one in found if one["type"] == "content_block_start"]
    deltas = [one["delta"] for one in found if one["type"] == "content_block_delta"]
    text, arguments = ("".join(delta.get(key, "") for delta in deltas) for key in ("text", "partial_json"))
    return Answer(text, blocks[-1]["name"], arguments, found[-2]["delta"]["stop_reason"] == "max_tokens")


def ollama(ask, most, stream):
    body = {"messages": HI, "tools": TOOLS, "options": {"num_predict": most}, "stream": stream}
    found = ask("/api/chat", body)
    lines = found if stream else [found]
    [call] = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert call["function"]["arguments"] == {}
    text = "".join(line["message"]["content"] for line in lines)
    return Answer(text, call["function"]["name"], "", lines[-1]["done_reason"] == "length")


def sent(server, stream, path, body):
    """Returns the body of an answer, or all events of a stream."""
    status, headers, content = server.request("POST", path, body)
    assert status == 200, content
    if headers["content-type"].startswith("application/x-ndjson"):
        return [json.loads(line) for line in content.decode().splitlines()]
    return events(content) if stream else content


@pytest.fixture(scope="module")
def scripted():
    with serving() as server:
        script = Script()
        script.follow(server.llm)
        yield server, script


def tokens_of(llm, text):
    """Counts the tokens in which the script is generated: the longest first."""
    pieces = {llm.tokenizer._text_of(token) for token in range(llm.vocab_size)}
    data, at, count = text.encode(), 0, 0
    while at < len(data):
        at += max(size for size in range(1, 33) if data[at : at + size] in pieces)
        count += 1
    return count


@pytest.mark.parametrize("api", [chat, responses, anthropic, ollama])
@pytest.mark.parametrize("name", SAID)
def test_a_call_cut_off_by_its_length_is_incomplete_whole_and_streamed(scripted, name, api, monkeypatch):
    server, script = scripted
    monkeypatch.setattr(server.llm, "chat_format", server.llm.chat_format_of(f"{TEMPLATE}{{# {MARKS[name]} #}}"))
    most = tokens_of(server.llm, SAID[name][: SAID[name].index("Rome") + 2])
    for stream in (False, True):
        script.say(SAID[name])
        answer = api(partial(sent, server, stream), most, stream)
        script.check()
        assert (answer.text, answer.name, answer.cut) == ("", "weather", True)
        with pytest.raises(ValueError):
            json.loads(answer.arguments)
        assert not set("<>|`]｜") & set(answer.arguments)


def test_a_complete_call_before_the_cut_is_complete(scripted, monkeypatch):
    server, script = scripted
    monkeypatch.setattr(server.llm, "chat_format", server.llm.chat_format_of(f"{TEMPLATE}{{# {MARKS['hermes']} #}}"))
    for after, statuses in (
        ('<tool_call>{"na', ["completed"]),
        ('<tool_call>{"name": "weather", "arg', ["completed", "incomplete"]),
    ):
        script.say(SAID["hermes"] + after)
        body = {"input": "Hi", "tools": [{"type": "function", **WEATHER}]}
        response = server.post(
            "/v1/responses", {**body, "max_output_tokens": tokens_of(server.llm, SAID["hermes"] + after)}
        )
        assert response["status"] == "incomplete"
        assert [call["status"] for call in response["output"]] == statuses
