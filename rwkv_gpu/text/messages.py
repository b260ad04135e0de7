"""Checks the messages of a chat and converts them to JSON types, the only types that templates get."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rwkv_gpu.errors import BadInput

ROLES = ("system", "user", "assistant", "tool")
TEXTS = ("name", "tool_call_id", "reasoning_content", "reasoning", "thinking")  # fields of a message
SILENT = ("assistant", "tool")  # roles whose content may be left out
DEPTH = 32
UNKNOWN_PART = "must be text, an image or audio, such as {'type': 'text', 'text': ...}"


def plain(value: object, where: str, depth: int = DEPTH) -> Any:
    """A copy of `value` in JSON types. Raises BadInput with the location of any other type."""
    if value is None or type(value) is str or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if depth == 0:
        raise BadInput(f"{where} nests more than {DEPTH} deep")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise BadInput(f"{where} has the key {key!r}; keys must be strings")
        return {str(key): plain(entry, f"{where}.{key}", depth - 1) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(entry, f"{where}[{i}]", depth - 1) for i, entry in enumerate(value)]
    raise BadInput(f"{where} is a {type(value).__name__}; templates take what JSON can say")


def check_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """The checked messages: known roles, content as text or a list of text parts, and arguments as objects."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise BadInput("messages must be a list of at least one message, such as {'role': 'user', 'content': 'Hi'}")
    return [_check_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def joined(content: Any) -> str:
    """Content as text: the texts of its parts, one per line."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content or ())


def _check_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadInput(f"{where} is a {type(message).__name__}; it must map role and content")
    checked: dict[str, Any] = plain(message, where)
    if checked.get("role") == "developer":
        checked["role"] = "system"  # "developer" is OpenAI's newer name
    if checked.get("role") not in ROLES:
        raise BadInput(f"{where}.role is {checked.get('role')!r}; it must be one of {', '.join(ROLES)}")
    checked = {key: value for key, value in checked.items() if value is not None}
    _check_texts(checked, TEXTS, where)
    # Clients send null next to tool calls; templates take only text.
    silent = checked["role"] in SILENT or "content" in message
    checked["content"] = _content(checked.get("content", "" if silent else None), f"{where}.content")
    calls = _check_calls(checked.pop("tool_calls", []), f"{where}.tool_calls")
    return {**checked, "tool_calls": calls} if calls else checked


def _check_texts(given: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    """Checks fields that are texts if they are there. Some clients send numbers as ids."""
    for name in names:
        if isinstance(given.get(name), list | dict | bool):
            raise BadInput(f"{where}.{name} is a {type(given[name]).__name__}; it must be a string")


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    """A text, or a list of text parts."""
    if isinstance(content, list):
        parts: list[dict[str, Any]] = [_part(part) for part in content]
        for i, part in enumerate(parts):
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise BadInput(f"{where}[{i}] {UNKNOWN_PART}")
        return parts
    if not isinstance(content, str):
        raise BadInput(f"{where} is {content!r}; it must be a string or a list of text parts")
    return content


def _part(part: Any) -> Any:
    """A part of content; a refusal is a text."""
    if isinstance(part, dict) and part.get("type") == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    return part


def _check_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadInput(f"{where} must be a list of tool calls")
    for i, call in enumerate(calls):
        function = call.get("function", call)
        if not isinstance(function, dict):
            raise BadInput(f"{where}[{i}].function is a {type(function).__name__}; it must have a name and arguments")
        _check_texts(call, ("id",), f"{where}[{i}]")
        _check_texts(function, ("name",), f"{where}[{i}].function")
        if "function" in call:
            call.setdefault("type", "function")
        if isinstance(function.get("arguments", ""), str | None):
            function["arguments"] = _arguments(function.get("arguments") or "", where)
    return calls


def _arguments(text: str, where: str) -> Any:
    """Arguments that came as JSON text, as in OpenAI's API; templates serialise them themselves."""
    try:
        return plain(json.loads(text), f"{where}.arguments") if text.strip() else {}
    except (ValueError, RecursionError):
        return text
