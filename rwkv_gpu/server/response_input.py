"""Converts a request of OpenAI's Responses API to a chat completion."""

import json
from collections.abc import Mapping
from typing import Any

from .call import Json
from .errors import ApiError, shown, typed
from .pdf_reader import file_part
from .reasoning import with_effort

TEXTS = ("input_text", "output_text", "text", "refusal")  # types of parts that are text
# How the types of items end that belong to a service's own tools
HOSTED = ("_search_call", "_interpreter_call", "shell_call", "shell_call_output", "mcp_call", "mcp_list_tools")
REASONING = "reasoning"  # role of an item between messages
IMAGE = "input_image"  # a type of parts that chats understand
NOT_CHAT = (
    "previous_response_id",
    "store",
    "input",
    "instructions",
    "max_output_tokens",
    "text",
    "reasoning",
    "tools",
    "tool_choice",
)


def request_of(fields: Json, ignored: list[str]) -> Json:
    """Converts the request to one for a chat completion. Adds tools that this server does not run to `ignored`."""
    asked = {name: value for name, value in fields.items() if name not in NOT_CHAT}
    asked["messages"] = messages_of(fields.get("input"), fields.get("instructions"), ignored)
    if "max_output_tokens" in fields:
        if "max_tokens" in fields:
            raise ApiError(400, "max_tokens and max_output_tokens are both given; give one", param="max_tokens")
        asked["max_tokens"] = fields["max_output_tokens"]
    for name in ("text", "reasoning"):
        typed(dict, fields.get(name, {}), name)
    form, effort = fields.get("text", {}).get("format"), fields.get("reasoning", {}).get("effort")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        asked["response_format"] = {"type": "json_schema", "json_schema": {**form}}
    elif form is not None:
        asked["response_format"] = form
    if effort is not None:
        with_effort(asked, effort, "reasoning.effort")
    return asked | _tools(fields, ignored)


def _tools(fields: Json, ignored: list[str]) -> Json:
    """The callable functions, and whether one must be called. Tools of other types are left out."""
    given, choice = typed(list, fields.get("tools", []), "tools"), fields.get("tool_choice")
    tools = []
    for at, tool in enumerate(given):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str):
            raise ApiError(400, f"tools[{at}] is {shown(tool)}; it must be an object with a type", param="tools")
        if kind == "function":
            function = {name: value for name, value in tool.items() if name != "type"}
            tools.append({"type": "function", "function": function})
        else:
            ignored.append(f"tools[{at}] ({kind[:40]})")
    if isinstance(choice, Mapping) and choice.get("type") not in ("function", None):
        message = f"tool_choice names a tool of the type {choice['type']!r}, which this server does not run"
        raise ApiError(400, message, param="tool_choice")
    if not tools and choice == "auto":
        choice = None
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    found = {"tools": tools, "tool_choice": choice}
    return {name: value for name, value in found.items() if value}


def items_of(given: Any) -> list[Any]:
    """The input as a list of items."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given if isinstance(given, list) else []


def _left_out(item: Any) -> bool:
    """True for an item of a service's own tools, such as web_search_call, and for compacted history."""
    kind = item.get("type") if isinstance(item, dict) else None
    return isinstance(kind, str) and (kind in ("compaction", "image_generation_call") or kind.endswith(HOSTED))


def messages_of(given: Any, instructions: Any, ignored: list[str]) -> list[Json]:
    """Converts the input to messages of a chat. Adds items without meaning for this server's models to `ignored`."""
    messages: list[Json] = [{"role": "system", "content": instructions}] if instructions is not None else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise ApiError(400, "input is missing; give a text or a list of items", param="input")
    for at, item in enumerate(given):
        if _left_out(item):
            ignored.append(f"input[{at}] ({item['type'][:40]})")
        else:
            _add(messages, item, f"input[{at}]")
    if not messages:
        raise ApiError(400, f"input has only items of a service's own tools, such as {given[0]['type']}", param="input")
    return [message for message in messages if message["role"] != REASONING]


def _add(messages: list[Json], item: Any, where: str) -> None:
    """Adds an item. Calls are added to the preceding assistant message, as one answer may have several."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    match kind:
        case "message":
            role, content = item.get("role"), _text(item.get("content"), f"{where}.content")
            reasoning = _take_reasoning(messages) if role == "assistant" else {}
            messages.append({"role": role, "content": content, **reasoning})
        case "custom_tool_call":  # a tool that is called with a text
            _add(
                messages,
                {**item, "type": "function_call", "arguments": json.dumps({"input": item.get("input")})},
                where,
            )
        case "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None, **_take_reasoning(messages)})
            call_id, name, arguments = (item.get(key) for key in ("call_id", "name", "arguments"))
            if not all(isinstance(one, str) for one in (call_id, name, arguments)):
                raise ApiError(400, f"{where} must have texts as call_id, name and arguments", param="input")
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output" | "custom_tool_call_output":
            content = _text(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        case "reasoning":  # reasoning belongs to the assistant's next item
            messages.append({"role": REASONING, "text": _reasoning(item)})
        case _:
            known = "message, function_call, function_call_output and reasoning"
            raise ApiError(400, f"{where} has the type {kind!r}; this server takes {known}", param="input")


def _take_reasoning(messages: list[Json]) -> Json:
    """Removes reasoning items from the end. Returns them as a field of the message that follows them."""
    texts: list[str] = []
    while messages and messages[-1]["role"] == REASONING:
        texts.insert(0, messages.pop()["text"])
    return {"reasoning_content": "\n".join(texts)} if any(texts) else {}


def _reasoning(item: Json) -> str:
    """The text of a reasoning item; empty if the client sent only a summary or an encrypted form."""
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _text(content: Any, where: str) -> Any:
    """Returns a text, or the joined texts of parts. If there are images or files, returns parts of chat completions."""
    if not isinstance(content, list):
        return content
    parts = [_part(part, where) for part in content]
    plain = all(part["type"] == "text" for part in parts)
    return "".join(part["text"] for part in parts) if plain else parts


def _part(part: Any, where: str) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_file":
        return file_part(part.get("file_data"), part.get("filename"))
    if kind == IMAGE:
        if not isinstance(part.get("image_url"), str):
            raise ApiError(400, f"{where} holds an image without image_url; give a data URL", param="input")
        return {**part}
    text = part.get("text", part.get("refusal")) if kind in TEXTS else None
    if not isinstance(text, str):
        raise ApiError(400, f"{where} has a part that is neither text, image nor PDF", param="input")
    return {"type": "text", "text": text}
