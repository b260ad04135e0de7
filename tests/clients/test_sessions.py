"""Sessions of ten turns in the style of Codex and Claude Code: tools, reasoning, refused images, compaction."""

import json

import pytest

from tests.clients.scripted import call, scripted_server
from tests.server.serving import events

FILES = {"a.txt": "alpha", "b.txt": "beta"}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with scripted_server(tmp_path_factory.mktemp("scripted")) as found:
        yield found


def streamed(server, path, body):
    """Returns the events of an answer, which must succeed."""
    status, _, content = server.request("POST", path, {**body, "stream": True})
    assert status == 200, content
    return events(content)


def shell(command):
    """Returns the result of a client's tool."""
    return FILES.get(command[-1], f"cat: {command[-1]}: No such file")


class Codex:
    """Sends the whole history with each request, stores nothing on the server, and adds the items of each response."""

    tools = (
        {"type": "function", "name": "shell", "description": "Runs a command", "strict": False, "parameters": {
            "type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}},
            "required": ["command"], "additionalProperties": False}},
        {"type": "custom", "name": "apply_patch", "description": "Edits files",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.*/"}},
        {"type": "web_search"}, {"type": "local_shell"},
    )  # fmt: skip

    def __init__(self, server):
        self.server = server
        self.history = []
        self.cached = 0

    def request(self):
        body = {
            "model": "gpt-5-codex", "instructions": "You are a coding agent.", "input": self.history,
            "tools": self.tools,
            "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "5a1e",
            "text": {"verbosity": "low"},
        }  # fmt: skip
        return streamed(self.server, "/v1/responses", body)

    def step(self):
        found = self.request()
        assert found[0]["type"] == "response.created" and found[-1]["type"] == "response.completed", found[-1]
        assert [one["sequence_number"] for one in found] == list(range(len(found)))
        items = [one["item"] for one in found if one["type"] == "response.output_item.done"]
        assert items == found[-1]["response"]["output"]
        self.cached = found[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"]
        self.history += items
        return items

    def turn(self, content):
        """Sends a message, and runs tools until there is an answer."""
        self.history.append({"type": "message", "role": "user", "content": content})
        while True:
            items = self.step()
            calls = [item for item in items if item["type"] == "function_call"]
            if not calls:
                return items[-1]["content"][0]["text"]
            for one in calls:
                output = shell(json.loads(one["arguments"])["command"])
                self.history.append({"type": "function_call_output", "call_id": one["call_id"], "output": output})


def text(value):
    return [{"type": "input_text", "text": value}]


def test_ten_turns_in_the_style_of_codex(session):
    server, script = session
    codex = Codex(server)
    for turn in range(8):
        name = "ab"[turn % 2] + ".txt"
        command = call("shell", json.dumps({"command": ["cat", name]}))
        script.say(f"<think>I read {name}.</think>{command}", f"It has {FILES[name]}.")
        assert codex.turn(text(f"What is in {name}? ({turn})")) == f"It has {FILES[name]}."
        script.check()
        assert f"What is in {name}? ({turn})" in script.prompts[0] and FILES[name] in script.prompts[1]
        assert codex.cached > len(script.prompts[1]) // 2  # a turn computes only the new part
    kinds = [item["type"] for item in codex.history[:5]]
    assert kinds == ["message", "reasoning", "function_call", "function_call_output", "message"]
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
    codex.history.append({"type": "message", "role": "user", "content": [*text("And this?"), image]})
    script.say()
    _, _, refused = server.request("POST", "/v1/responses", {"input": codex.history, "stream": True})
    assert "image" in refused["error"]["message"] and refused["error"]["type"] == "invalid_request_error"
    codex.history.pop()
    script.say("<think>All of it.</think>We read alpha and beta.")
    summary = codex.turn(text("Summarise the session for a handover."))
    assert summary == "We read alpha and beta."
    long = len(script.prompts[0])
    codex.history = [{"type": "message", "role": "user", "content": text(f"Summary so far: {summary}")}]
    missing = call("shell", '{"command": ["cat", "c.txt"]}')
    script.say(missing, "There is none.")
    assert codex.turn(text("What is in c.txt?")) == "There is none."
    assert "No such file" in script.prompts[1] and len(script.prompts[0]) < long
    script.check()


class Claude:
    """Sends the whole history with each request, with the blocks as received."""

    tools = (
        {"name": "Read", "description": "Reads a file", "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False,
            "properties": {"file_path": {"type": "string"}, "limit": {"type": "number"}}, "required": ["file_path"]}},
        {"name": "Task", "description": "Starts an agent", "cache_control": {"type": "ephemeral"}, "input_schema": {
            "type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}},
    )  # fmt: skip

    def __init__(self, server):
        self.server = server
        self.messages = []
        self.usage = {}

    def body(self, **more):
        cached = {"cache_control": {"type": "ephemeral"}}
        system = [
            {"type": "text", "text": "You are Claude Code.", **cached},
            {"type": "text", "text": "Be brief.", **cached},
        ]
        return {
            "model": "claude-sonnet-4-5", "max_tokens": 4096, "system": system, "tools": self.tools,
            "messages": self.messages, "thinking": {"type": "enabled", "budget_tokens": 2048},
            "metadata": {"user_id": "user_1"}, **more,
        }  # fmt: skip

    def step(self):
        """Returns the blocks of a streamed answer, assembled as a client does."""
        found = streamed(self.server, "/v1/messages?beta=true", self.body())
        blocks = []
        for event in found:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                delta, block = event["delta"], blocks[event["index"]]
                field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(
                    delta["type"]
                )
                if field:
                    block[field] = block.get(field, "") + delta[field]
                else:
                    block["json"] += delta["partial_json"]
        for block in blocks:
            arguments = block.pop("json")
            if block["type"] == "tool_use":
                block["input"] = json.loads(arguments or "{}")
        assert found[0]["type"] == "message_start" and found[-1]["type"] == "message_stop"
        self.usage = found[-2]["usage"]
        self.messages.append({"role": "assistant", "content": blocks})
        return blocks, found[-2]["delta"]["stop_reason"]

    def turn(self, content):
        self.messages.append({"role": "user", "content": content})
        while True:
            blocks, reason = self.step()
            uses = [block for block in blocks if block["type"] == "tool_use"]
            assert reason == ("tool_use" if uses else "end_turn")
            if not uses:
                return blocks[-1]["text"]
            results = []
            for use in uses:
                name = use["input"]["file_path"]
                output = [{"type": "text", "text": FILES.get(name, "No such file")}]
                results.append(
                    {"type": "tool_result", "tool_use_id": use["id"], "content": output, "is_error": name not in FILES}
                )
            self.messages.append({"role": "user", "content": results})


def test_ten_turns_in_the_style_of_claude_code(session):
    server, script = session
    claude = Claude(server)
    for turn in range(8):
        name, other = ("a.txt", "b.txt") if turn % 2 else ("b.txt", "a.txt")
        calls = [call("Read", json.dumps({"file_path": one})) for one in (name, other)]
        script.say(f"<think>I read both.</think>{calls[0]}\n{calls[1]}", f"{FILES[name]}, then {FILES[other]}.")
        assert claude.turn(f"What is in them? ({turn})") == f"{FILES[name]}, then {FILES[other]}."
        script.check()
        assert script.prompts[1].rindex(FILES[name]) < script.prompts[1].rindex(FILES[other])
        counted = server.post("/v1/messages/count_tokens", {**claude.body(), "max_tokens": 1})
        assert counted["input_tokens"] > 0
    assert [block["type"] for block in claude.messages[1]["content"]] == ["thinking", "tool_use", "tool_use"]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    for content in ([image], [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [image]}]):
        messages = [*claude.messages, {"role": "user", "content": content}]
        status, _, refused = server.request("POST", "/v1/messages", {**claude.body(), "messages": messages})
        assert status == 400 and refused["type"] == "error" and "image" in refused["error"]["message"]
    script.say("<think>All of it.</think>We read alpha and beta.")
    summary = claude.turn([{"type": "text", "text": "Summarise this conversation."}])
    long = len(script.prompts[0])
    claude.messages = [{"role": "user", "content": f"Summary: {summary}"}, {"role": "assistant", "content": "I go on."}]
    script.say(call("Read", '{"file_path": "c.txt", "limit": 5}'), "There is none.")
    assert claude.turn("What is in c.txt?") == "There is none."
    assert (
        "No such file" in script.prompts[1] and "We read alpha" in script.prompts[0] and len(script.prompts[0]) < long
    )
    script.check()
