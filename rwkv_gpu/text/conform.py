"""Converts checked messages and tools to the form that one chat template takes."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rwkv_gpu.errors import BadInput
from rwkv_gpu.text.capabilities import Capabilities, Message, parts
from rwkv_gpu.text.messages import joined

SHORT = re.compile(r"[a-zA-Z0-9]{9}")
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of reasoning in a message


def conform_messages(messages: Sequence[Message], can: Capabilities) -> list[Message]:
    """The messages in the form that the template takes."""
    found = [_with_reasoning(message) for message in messages]
    while [one["role"] for one in found[:2]] == ["system", "system"] and not can.two_systems:
        found = [{**found[0], "content": "\n\n".join(joined(one["content"]) for one in found[:2])}, *found[2:]]
    if found[0]["role"] == "system" and not can.system:
        found = _without_system(found)
    if any(message.get("tool_calls") for message in found):
        found = _with_calls(found, can)
    return [_with_content(message, can) for message in found]


def conform_tools(tools: Sequence[Message] | None, can: Capabilities) -> list[Message] | None:
    """The tools in the form that the template takes."""
    if not tools:
        return can.absent_tools
    if not can.described_tools:
        return [*tools]
    return [{**tool, "function": _described(tool["function"])} if _has_function(tool) else tool for tool in tools]


def functions_text(tools: Sequence[Mapping[str, object]] | None) -> str:
    """The tools as JSON text, for templates that read the variable `functions` instead of `tools`."""
    return json.dumps([tool.get("function", tool) for tool in tools or ()], ensure_ascii=False, indent=4)


def _with_reasoning(message: Message) -> Message:
    """The message with its reasoning under the names that templates read."""
    if message["role"] != "assistant":
        return message
    reasoning = next((message[name] for name in REASONING if isinstance(message.get(name), str)), None)
    return message if reasoning is None else {**message, **dict.fromkeys(REASONING, reasoning)}


def _without_system(messages: list[Message]) -> list[Message]:
    """The messages with a system message at the start joined to the next."""
    system, *rest = messages
    if not rest:
        return [{**system, "role": "user"}]
    following = rest[0]
    text = f"{joined(system['content'])}\n{joined(following['content'])}"
    return [{**following, "content": text}, *rest[1:]]


def _with_calls(messages: Sequence[Message], can: Capabilities) -> list[Message]:
    """The messages with arguments and ids of tool calls in the form that the template takes."""
    found: list[Message] = []
    names: dict[object, object] = {}
    for one in _with_ids(messages):
        if one.get("tool_calls"):
            one["tool_calls"] = [_with_call(call, can) for call in one["tool_calls"]]
            names |= {call.get("id"): call.get("function", call).get("name") for call in one["tool_calls"]}
            if joined(one["content"]) and one.get("reasoning_content") and can.thinks_or_answers:
                one["content"] = ""
        elif one["role"] == "tool":
            if can.short_ids and "tool_call_id" in one:
                one["tool_call_id"] = _short(one["tool_call_id"])
            name = names.get(one.get("tool_call_id"))
            if name:
                one.setdefault("name", name)
        found.append(one)
    return found


def _with_ids(messages: Sequence[Message]) -> list[Message]:
    """Adds ids to calls and results without one, as in Ollama's API.

    Results without an id belong to the calls in order.
    """
    found: list[Message] = []
    waiting: dict[object, object] = {}  # names of calls without a result, by id
    for message in messages:
        one, named = {**message}, message.get("name")
        if one.get("tool_calls"):
            first = sum(len(before.get("tool_calls", ())) for before in found)
            one["tool_calls"] = calls = [
                {**call, "id": call.get("id") or f"call_{first + n}"} for n, call in enumerate(one["tool_calls"])
            ]
            waiting = {call["id"]: call.get("function", call).get("name") for call in calls}
        elif one["role"] == "tool":
            if waiting and not one.get("tool_call_id"):
                one["tool_call_id"] = next((key for key, name in waiting.items() if name == named), next(iter(waiting)))
            waiting.pop(one.get("tool_call_id"), None)
        found.append(one)
    return found


def check_arguments(messages: Sequence[Message]) -> None:
    """Refuses arguments that are not an object, for example of a call that was cut off."""
    for at, message in enumerate(messages):
        for n, call in enumerate(message.get("tool_calls", ())):
            given = call.get("function", call)["arguments"]
            if not isinstance(given, Mapping):
                where = f"messages[{at}].tool_calls[{n}]"
                raise BadInput(f"{where} has the arguments {given!r:.60}; this template takes only a JSON object")


def _with_call(call: Message, can: Capabilities) -> Message:
    inner = call.get("function", call)
    function = {**inner, "arguments": _arguments(inner["arguments"], objects=can.object_arguments)}
    changed = {**call, "function": function} if "function" in call else function
    return {**changed, "id": _short(call["id"])} if can.short_ids else changed


def _arguments(value: Any, *, objects: bool) -> Any:
    """Arguments as an object, or as JSON text. Text that is not JSON stays as it is."""
    if not objects:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value


def _short(value: Any) -> str:
    """An id of nine letters or digits."""
    text = str(value)
    return text if SHORT.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()[:9]


def _with_content(message: Message, can: Capabilities) -> Message:
    """The message with its content as text or as parts, whichever the template takes."""
    content, role = message["content"], message["role"]
    if role == "assistant" and message.get("reasoning_content") and can.thinking_parts:
        thought = {"type": "thinking", "thinking": message["reasoning_content"]}
        rest = {key: value for key, value in message.items() if key not in REASONING}
        text = content if isinstance(content, list) else parts(content) if content else []
        return {**rest, "content": [thought, *text]}
    if isinstance(content, list) and not can.takes_parts(role):
        return {**message, "content": joined(content)}
    if isinstance(content, str) and can.only_parts:
        return {**message, "content": parts(content)}
    return message


def _has_function(tool: Message) -> bool:
    return isinstance(tool.get("function"), Mapping)


def _described(function: Mapping[str, Any]) -> Message:
    """A function with all required parts: missing descriptions become empty texts."""
    parameters = function.get("parameters") or {}
    properties = {
        key: _filled(value, description="") if isinstance(value, Mapping) else value
        for key, value in (parameters.get("properties") or {}).items()
    }
    parameters = _filled(parameters, type="object", properties={}, required=[]) | {"properties": properties}
    return _filled(function, description="", parameters={}) | {"parameters": parameters}


def _filled(given: Mapping[str, Any], **absent: Any) -> Message:
    return {**given, **{key: value for key, value in absent.items() if key not in given}}
