"""Conversations as clients send them back: the resulting prompt, and requests that must not fail."""

import logging
import queue
from typing import Any

import pytest

from rwkv_gpu.server.catalogue import ServedModel
from tests.gguf.writer import text_key, with_keys, written
from tests.golden_files import golden
from tests.process import PATIENCE
from tests.server.serving import Served, serving
from tests.text import template_matrix

Q = {"role": "user", "content": "hello"}
BEGUN = {"role": "assistant", "content": "theworld"}
NAME = "Qwen-Qwen3-0.6B"
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Starts a server of a tiny model with the template of Qwen3."""
    template = template_matrix.load()[0][NAME]
    data = with_keys(golden("tiny-llama.gguf").read_bytes(), [text_key("tokenizer.chat_template", template)])
    path = written(tmp_path_factory.mktemp("model"), data)
    with serving(ServedModel("qwen3", str(path)), log_prompts=True) as served:
        yield served


def prompt(server: Served, messages: list[dict[str, Any]], **more: Any) -> str:
    return str(server.post("/apply-template", {"messages": messages, **more})["prompt"])


class Lines(logging.Handler):
    """Collects the fields of log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: queue.Queue[dict[str, Any]] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.fields.put(getattr(record, "fields", {}))


def logged(server: Served, path: str, body: dict[str, Any]) -> str:
    """Returns the prompt of a request, from its log line."""
    lines, logger = Lines(), logging.getLogger("rwkv_gpu.access")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    try:
        server.post(path, body)
        fields: dict[str, Any] = {}
        while "prompt" not in fields:
            fields = lines.fields.get(timeout=PATIENCE)
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
    return str(fields["prompt"][0]).replace("▁", " ")


def test_the_last_message_of_an_assistant_is_continued(server):
    text = prompt(server, [Q, BEGUN])
    assert text.endswith("theworld")
    assert text == prompt(server, [Q, BEGUN], continue_final_message=True)
    reply = server.post("/v1/chat/completions", {"messages": [Q, BEGUN], "max_tokens": 3})
    assert not reply["choices"][0]["message"]["content"].startswith("theworld")


def test_every_api_continues_the_text_of_the_last_message_and_leaves_out_one_without_text(server):
    more = {"max_tokens": 1}
    asked = {"/v1/chat/completions": more, "/v1/messages": more, "/api/chat": {"options": {"num_predict": 1}}}
    for path, fields in asked.items():
        texts = [
            logged(server, path, {"messages": [Q, *last], "stream": False, **fields})
            for last in ([], [{**BEGUN, "content": ""}], [BEGUN])
        ]
        assert texts[0] == texts[1] and texts[2].startswith(texts[0]) and texts[2].endswith("theworld"), path
    for content in (None, [], [{"type": "text", "text": ""}]):
        assert prompt(server, [Q, {**BEGUN, "content": content}]) == prompt(server, [Q])


def test_a_prompt_need_not_open_an_answer(server):
    assert prompt(server, [Q], add_generation_prompt=False).endswith("<|im_end|>\n")
    assert prompt(server, [Q, BEGUN], add_generation_prompt=False).endswith("theworld<|im_end|>\n")
    reply = server.post("/v1/chat/completions", {"messages": [Q], "max_tokens": 3, "add_generation_prompt": False})
    assert reply["usage"]["completion_tokens"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "variables",
    [
        {"self": 1}, {"context": 1}, {"environment": []}, {"namespace": 1}, {"range": 3}, {"loop": {}}, {"dict": "x"},
        {"raise_exception": 1}, {"strftime_now": 1}, {"varargs": 1}, {"caller": 1}, {"__class__": 1}, {" made": 1},
        {"": 1}, {"enable_thinking": "yes"}, {"enable_thinking": None}, {"functions": [1]}, {"datetime": {}},
        {"limits": 1}, {"messages": []}, {"add_generation_prompt": 1}, {"tools": {}}, {"source": 1}, {"opens": True},
        {"a": [[[[[[[[[]]]]]]]]]}, {"bos_token": 7},
    ],
)  # fmt: skip
def test_no_template_variable_is_an_error_of_the_server(server, variables):
    body = {"messages": [Q], "max_tokens": 1, "chat_template_kwargs": variables}
    for path in ("/v1/chat/completions", "/apply-template"):
        status, _, answer = server.request("POST", path, body)
        assert status in (200, 400), answer
    status, _, answer = server.request("POST", "/v1/responses", {"input": "hello", "chat_template_kwargs": variables})
    assert status in (200, 400), answer


def test_thinking_inside_a_tool_loop_reaches_the_prompt_in_every_api(server):
    thought = "Look it up."
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}
    chat = [
        Q,
        {"role": "assistant", "content": None, "reasoning_content": thought, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    text = logged(server, "/v1/chat/completions", {"messages": chat, "tools": [tool], "max_tokens": 1})
    assert f"<think>\n{thought}\n</think>" in text
    messages = [
        Q,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": thought, "signature": ""}, use]},
        {"role": "user", "content": [result]},
    ]
    named = {"name": "weather", "input_schema": {"type": "object"}}
    body = {"messages": messages, "tools": [named], "max_tokens": 1}
    assert f"<think>\n{thought}\n</think>" in logged(server, "/v1/messages", body)
    items = [
        Q,
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
    ]
    body = {"input": items, "tools": [{"type": "function", **tool["function"]}], "max_output_tokens": 1}
    assert f"<think>\n{thought}\n</think>" in logged(server, "/v1/responses", body)


def test_thinking_of_earlier_turns_is_left_out_by_the_template(server):
    messages = [
        Q,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "hi"}]},
        Q,
    ]
    assert "Hm." not in logged(server, "/v1/messages", {"messages": messages, "max_tokens": 1})
