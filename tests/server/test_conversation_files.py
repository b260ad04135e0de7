"""Conversation files over HTTP: messages and branches, states by the model's digest, and refusals."""

import json

import pytest

import rwkv_gpu
from rwkv_gpu.llm.conversation_file import opened
from tests.golden_files import golden
from tests.server.serving import Served, serving

TYPE = "multipart/form-data; boundary=b"
GREEDY = {"temperature": 0, "max_tokens": 12}
THOUGHT = {"role": "assistant", "content": "One.", "reasoning_content": "A number"}


def form(**fields: str | bytes) -> bytes:
    parts = []
    for name, value in fields.items():
        more = '; filename="talk.rwkvchat"' if isinstance(value, bytes) else ""
        data = value if isinstance(value, bytes) else value.encode()
        parts.append(f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + data + b"\r\n")
    return b"".join(parts) + b"--b--\r\n"


def read(server: Served, data: bytes, **fields: str):
    status, _, found = server.request(
        "POST", "/v1/conversation-files/read", form(file=data, **fields), content_type=TYPE
    )
    return status, found


def answer(server: Served, messages, **more):
    return server.post("/v1/chat/completions", {"messages": messages, **GREEDY, **more})


@pytest.fixture(scope="module")
def server():
    with serving() as served:
        yield served


@pytest.fixture
def talk(server, tmp_path):
    """Returns a conversation that the library saved with its state."""
    chat = server.llm.chat("Be brief.", **GREEDY, seed=3)
    chat.send("Hi, how are you today?")
    chat.save(tmp_path / "talk.rwkvchat")
    return chat, (tmp_path / "talk.rwkvchat").read_bytes()


def test_a_state_is_used_for_its_own_conversation_only(server, talk):
    chat, data = talk
    status, found = read(server, data, cache_salt="mine")
    assert status == 200
    assert found["state"] is True
    [branch] = found["branches"]
    assert branch["messages"] == [{"role": m["role"], "content": m["content"]} for m in chat.messages]
    assert branch["settings"] == {**GREEDY, "seed": 3, "top_p": 0.9}
    messages = [*branch["messages"], {"role": "user", "content": "And you?"}]
    cached = {
        salt: answer(server, messages, cache_salt=salt)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for salt in ("other", "mine")
    }
    assert cached["mine"] > 20
    assert cached["other"] == 0, "a state from a file reaches no other conversation"


def test_a_written_file_continues_in_the_library_with_its_state(server, tmp_path):
    first = [{"role": "user", "content": "Tell me about the sea, please."}]
    said = answer(server, first, cache_salt="w")["choices"][0]["message"]["content"]
    more = [*first, {"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    again = answer(server, more, cache_salt="w")["choices"][0]["message"]["content"]
    more.append({"role": "assistant", "content": again})
    branches = [
        {"messages": [{"role": "user", "content": "Another"}, THOUGHT]},
        {"messages": more, "settings": GREEDY, "think": False},
    ]
    body = {"branches": branches, "current": 1, "cache_salt": "w"}
    status, _, data = server.request("POST", "/v1/conversation-files/write", body)
    assert status == 200
    status, found = read(server, data, cache_salt="r")
    assert (found["current"], found["state"]) == (1, True)
    assert [one["messages"] for one in found["branches"]] == [branches[0]["messages"], more]
    assert [one["think"] for one in found["branches"]] == [None, False]
    (tmp_path / "talk.rwkvchat").write_bytes(data)
    chat = server.llm.load_chat(tmp_path / "talk.rwkvchat")
    assert chat.settings == {**GREEDY, "top_p": 0.9}
    assert [m["content"] for m in chat.messages] == [m["content"] for m in more]
    answered = chat.send("Go on.")
    assert answered.stats.reused_tokens > 20
    more.append({"role": "user", "content": "Go on."})
    assert answered.text == answer(server, more, cache_salt="w")["choices"][0]["message"]["content"].strip()


def test_another_model_reads_the_messages_without_the_state(server, talk, tmp_path):
    _, data = talk
    other = tmp_path / "other.gguf"
    whole = bytearray(golden("quiet-rwkv7.gguf").read_bytes())
    whole[-1] ^= 1  # the same fingerprint, another digest
    other.write_bytes(whole)
    with rwkv_gpu.load(other, device="cpu") as llm:
        found = opened(llm, data, "salt")
    assert found["state"] is False
    assert len(found["branches"][0]["messages"]) == 3
    assert read(server, data)[1]["state"] is False, "without a salt, all would share the state"


def test_damaged_files_and_wrong_bodies_are_refused_in_one_sentence(server, talk):
    _, data = talk
    cases = [
        data[:-1],
        data[: len(data) // 2],
        data[:80] + b"\xff" + data[81:],
        b"",
        b"GGUF" + data,
        data[:8] + b"\xff" * 8,
    ]
    for bad in cases:
        status, found = read(server, bad, cache_salt="x")
        message = found["error"]["message"]
        assert status == 400 and message.startswith("the file ") and "\n" not in message, (bad[:20], found)
    user = {"role": "user", "content": "Hi"}
    bodies = [
        {}, {"branches": []}, {"branches": [3]}, {"branches": [{"messages": []}]}, {"branches": [{"messages": [3]}]},
        {"branches": [{"messages": [user], "settings": 3}]}, {"branches": [{"messages": [user], "settings": {"x": 1}}]},
        {"branches": [{"messages": [user]}], "current": 1}, {"branches": [{"messages": [user]}], "current": True},
        {"branches": [{"messages": [user]}] * 201},
        {"branches": [{"messages": [{**THOUGHT, "reasoning_content": 3}]}]},
        {"branches": [{"messages": [user], "settings": {"top_p": 3}}]},
        {"branches": [{"messages": [user], "think": 3}]},
    ]  # fmt: skip
    for body in bodies:
        status, _, found = server.request("POST", "/v1/conversation-files/write", body)
        assert status == 400 and "\n" not in found["error"]["message"], (body, found)
    status, _, found = server.request("POST", "/v1/conversation-files/read", form(other="x"), content_type=TYPE)
    assert (status, found["error"]["param"]) == (400, "file"), json.dumps(found)
