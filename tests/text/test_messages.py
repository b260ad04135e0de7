"""Checks of messages before a template reads them."""

import re

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.text.messages import check_messages, joined


def asked(**more: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": "hi", **more}]


def test_parts_of_text_are_joined_by_lines():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert joined(check_messages(asked(content=parts))[0]["content"]) == "one\ntwo"
    assert joined("text") == "text"


def test_null_is_accepted_only_as_the_content_of_an_assistant_or_a_tool():
    chat = [{"role": "assistant", "content": None, "refusal": None, "tool_calls": None}, {"role": "tool"}]
    assert check_messages(chat) == [{"role": "assistant", "content": ""}, {"role": "tool", "content": ""}]
    assert "tool_calls" not in check_messages([{"role": "assistant", "content": "a", "tool_calls": []}])[0]


@pytest.mark.parametrize(
    "content",
    [
        5, {"text": "hi"}, ["hi"], [{"type": "text"}], [{"type": "text", "text": 5}], [{"text": "hi"}],
        [{"type": "image_url", "text": "hi"}], [{"type": ["text"], "text": "hi"}],
        [{"type": "text", "text": "a"}, None],
    ],
)  # fmt: skip
def test_content_that_is_not_text_is_refused(content):
    with pytest.raises(BadInput, match=r"messages\[0\]\.content"):
        check_messages(asked(content=content))


@pytest.mark.parametrize(
    "calls", ["x", {}, ["x"], [None], [{"function": "f"}], [{"function": None}], [{"function": []}]]
)
def test_invalid_calls_are_refused(calls):
    with pytest.raises(BadInput, match="tool_calls"):
        check_messages([{"role": "assistant", "content": "", "tool_calls": calls}])


def test_arguments_become_objects_where_they_can():
    def arguments(text: str) -> object:
        call = {"id": "1", "function": {"name": "f", "arguments": text}}
        return check_messages([{"role": "assistant", "tool_calls": [call]}])[0]["tool_calls"][0]["function"][
            "arguments"
        ]

    assert arguments('{"a": 1}') == {"a": 1}
    assert arguments("") == {}
    for text in ("{", "[" * 100_000, "nothing"):
        assert arguments(text) == text


@pytest.mark.parametrize("depth", [40, 5_000])
def test_messages_nested_too_deep_are_refused_before_rendering(depth):
    nested: object = "x"
    for _ in range(depth):
        nested = [nested]
    with pytest.raises(BadInput, match="deep"):
        check_messages(asked(metadata=nested))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "tool", "content": "5", "tool_call_id": {"a": 1}}, "tool_call_id"),
        ({"role": "tool", "content": "5", "name": ["f"]}, "name"),
        ({"role": "assistant", "content": "a", "reasoning_content": [{}]}, "reasoning_content"),
        ({"role": "assistant", "tool_calls": [{"id": [1], "function": {"name": "f"}}]}, "tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": {}}}]}, "tool_calls[0].function.name"),
    ],
)
def test_fields_that_must_be_texts_are_refused_by_name_if_they_are_not(message, field):
    with pytest.raises(BadInput, match=re.escape(f"messages[0].{field} is a ")):
        check_messages([message])
    number = {"role": "tool", "content": "5", "tool_call_id": 7}  # some clients count the calls
    assert check_messages([number]) == [number]
