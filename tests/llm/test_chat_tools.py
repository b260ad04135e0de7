"""Chats whose model may call tools. A regular expression forces a tiny model to call."""

import json

import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadFile, BadInput
from rwkv_gpu.llm.chat import NOT_CALLED
from tests.golden_files import OWN

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}]
CALL = r'Sure\.<tool_call>\n\{"name": "add", "arguments": \{"a": 1\}\}\n</tool_call>'


@pytest.fixture(scope="module")
def llm():
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu", sequences=2) as llm:
        yield llm


@pytest.fixture
def chat(llm):
    """Returns a chat after an answer with a call."""
    chat = llm.chat(template="chatml", temperature=0, max_tokens=200)
    chat.tools = TOOLS
    assert chat.tools == tuple(TOOLS)
    chat.send("1 + 1?", regex=CALL)
    return chat


def test_an_answer_has_its_text_and_its_calls(chat):
    assert chat.messages[-1] == {"role": "assistant", "content": "Sure."}
    [call] = chat.calls
    assert (call["name"], json.loads(call["arguments"])) == ("add", {"a": 1})


def test_the_model_continues_with_the_results_as_a_chat_completion_does(llm, chat):
    [call] = chat.calls
    with pytest.raises(BadInput):
        chat.answer_calls([])
    done = chat.answer_calls(["2"], max_tokens=4).wait()
    assert [m["role"] for m in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert chat.calls == []
    function = {"name": "add", "arguments": call["arguments"]}
    calls = [{"id": call["id"], "type": "function", "function": function}]
    asked = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "Sure.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": call["id"], "content": "2"},
    ]  # fmt: skip
    llm.chat_format = llm.chat_format_of("chatml")
    other = llm.create_chat_completion(asked, tools=TOOLS, temperature=0, max_tokens=4)
    assert other["choices"][0]["message"]["content"] == done.text.strip()


def test_a_call_without_a_result_is_answered_before_the_next_question(chat):
    chat.send("never mind", max_tokens=2)
    assert [m["role"] for m in chat.messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert chat.messages[2]["content"] == NOT_CALLED
    chat.undo()
    assert len(chat.messages) == 3
    chat.undo()
    assert chat.messages == []


def test_text_is_shown_and_calls_are_not(llm, chat):
    splitter = chat.splitter()
    shown = [part.get("content", "") for event in chat.regenerate(regex=CALL) for part in splitter.feed(event.text)]
    assert "".join(shown) == "Sure."
    assert llm.chat(template="chatml").splitter() is None


def test_calls_are_saved_and_wrong_ones_in_a_file_refused(llm, chat, tmp_path, monkeypatch):
    chat.answer_calls(["2"], max_tokens=2).wait()
    chat.save(tmp_path / "a.chat")
    again = llm.load_chat(tmp_path / "a.chat")
    assert again._messages == chat._messages
    assert again.fork()._messages == chat._messages
    for wrong in ({"calls": ({"x": 1},)}, {"call": (1, "a")}, {"calls": ({"function": {"name": 3}},)}):
        message = chat._messages[1]
        chat._messages = (chat._messages[0], type(message)("assistant", "", **wrong))
        monkeypatch.setattr(chat, "_repeated", tuple)
        chat.save(tmp_path / "b.chat")
        with pytest.raises(BadFile):
            llm.load_chat(tmp_path / "b.chat")
