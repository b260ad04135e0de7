"""Anthropic's API: messages, whole and streamed, with tools and thinking; and token counts."""

import json
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any

from rwkv_gpu.llm.chat_completion import Reply
from rwkv_gpu.llm.unique import unique

from .call import Call, Family, Json, Response, Stream, Whole, dumps
from .chunks import chunks_of
from .endpoint import Endpoint
from .errors import ApiError, shown, typed
from .fields import MESSAGES, honoured
from .openai import begun, model_name, wants_stream
from .pdf_reader import file_part
from .reasoning import with_effort
from .routes import Route, post
from .service import Running, Service

KINDS = {413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error", 504: "api_error"}
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "abort": "end_turn"}
NOT_COUNTED = (
    "cache_creation",
    "inference_geo",
    "output_tokens_details",
    "server_tool_use",
    "service_tier",
)  # names of fields of usage
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
THOUGHTS = ("thinking", "redacted_thinking")  # types of parts without text
OF_SERVERS = (  # types of parts of tools that the server does not run
    "server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
    "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "mcp_tool_use", "mcp_tool_result",
)  # fmt: skip


def error_body(error: ApiError, request_id: str) -> Json:
    """An error in Anthropic's format."""
    detail = {"type": KINDS.get(error.status, error.kind), "message": error.message}
    return {"type": "error", "error": detail, "request_id": request_id}


def event(kind: str, **data: Any) -> bytes:
    """A server-sent event with a name."""
    return b"event: " + kind.encode() + b"\ndata: " + dumps({"type": kind, **data}) + b"\n\n"


def error_event(error: ApiError, request_id: str) -> bytes:
    """The last event of a stream that failed."""
    return b"event: error\ndata: " + dumps(error_body(error, request_id)) + b"\n\n"


FAMILY = Family(error_body, error_event)


def routes(service: Service) -> list[Route]:
    """The routes of this API."""
    endpoint = partial(Endpoint, service, FAMILY)
    return [
        post("/v1/messages", endpoint(messages, takes_body=True)),
        post("/v1/messages/count_tokens", endpoint(count_tokens, takes_body=True)),
    ]


async def messages(service: Service, call: Call) -> Response:
    """Answers messages."""
    fields = honoured(call, MESSAGES)
    name, stream = model_name(fields), wants_stream(fields)
    if "max_tokens" not in fields:
        raise ApiError(400, "max_tokens is missing; it is the maximum length of the answer", param="max_tokens")
    served, asked = service.catalogue.find(name), request_of(fields, call.ignored)
    running = await service.begin(
        call, name, lambda llm, **more: llm.prepare_chat_completion(**asked | more), asked["messages"]
    )
    id, stops = f"msg_{unique(24)}", asked.get("stop", [])
    if stream:
        return Stream(_events(running, id, served.name, stops))
    await running.wait()
    [answer] = running.answers.each
    reply = running.prepared.reply
    assert isinstance(reply, Reply)
    [choice] = reply.whole([(answer.completion, answer.events)])["choices"]
    content = _content(choice["message"])
    ended = _end(running, choice["finish_reason"], stops)
    return Whole({**_head(id, served.name), "content": content, **ended, "usage": _usage(running)})


async def count_tokens(service: Service, call: Call) -> Response:
    """Counts the prompt tokens of messages."""
    fields = honoured(call, MESSAGES)
    name = model_name(fields)
    asked = request_of({**fields, "max_tokens": 1}, call.ignored)
    return Whole({"input_tokens": await service.count(call, name, asked)})


def request_of(fields: Json, ignored: list[str]) -> Json:
    """Converts the request to one for a chat completion. Adds tools that this server does not run to `ignored`."""
    asked: Json = {name: fields[name] for name in ("temperature", "top_p", "top_k", "max_tokens") if name in fields}
    asked["messages"], asked["continue_final_message"] = begun(_messages(fields, ignored))
    if "stop_sequences" in fields:
        asked["stop"] = fields["stop_sequences"]
    thinking = fields.get("thinking")
    if thinking is not None:
        kind = thinking.get("type") if isinstance(thinking, Mapping) else None
        if kind not in ("enabled", "disabled", "adaptive"):
            raise ApiError(400, f"thinking is {thinking!r}; its type must be enabled or disabled", param="thinking")
        asked["think"] = kind != "disabled"
        if kind == "enabled" and thinking.get("budget_tokens") is not None:
            asked["reasoning_budget_tokens"] = thinking["budget_tokens"]
    if fields.get("tools"):
        asked["tools"] = _tools(typed(list, fields["tools"], "tools"), ignored)
    choice = fields.get("tool_choice")
    if choice is not None and (asked.get("tools") or choice != {"type": "auto"}):
        asked |= _choice(choice)
    _add_output(asked, fields.get("output_config"), fields.get("output_format"))
    return asked


def _add_output(asked: Json, config: Any, form: Any) -> None:
    """Adds the effort and the form of the answer."""
    config = {} if config is None else typed(dict, config, "output_config")
    form = config.get("format", form)
    if form is not None:
        schema = form.get("schema") if isinstance(form, Mapping) and form.get("type") == "json_schema" else None
        if not isinstance(schema, Mapping):
            message = "output_config.format must have the type json_schema and a schema"
            raise ApiError(400, message, param="output_config")
        asked["schema"] = schema
    if config.get("effort") is not None:
        with_effort(asked, config["effort"], "output_config.effort")


def _tools(given: list[Any], ignored: list[str]) -> list[Json]:
    """The tools with a schema. Others, such as web_search_20250305, are left out."""
    found = []
    for at, tool in enumerate(given):
        if not isinstance(tool, dict):
            raise ApiError(
                400, f"tools[{at}] is {shown(tool)}; it must be an object with an input_schema", param="tools"
            )
        kind = tool.get("type") or "custom"
        if kind != "custom":
            ignored.append(f"tools[{at}] ({kind!s:.40})")
            continue
        function = {"name": tool.get("name"), "description": tool.get("description", "")}
        function |= {"parameters": tool.get("input_schema"), "strict": tool.get("strict", False)}
        found.append({"type": "function", "function": function})
    return found


def _choice(choice: Any) -> Json:
    kind = choice.get("type") if isinstance(choice, dict) else None
    parallel = (
        {} if not isinstance(choice, dict) else {"parallel_tool_calls": not choice.get("disable_parallel_tool_use")}
    )
    if kind == "tool":
        return {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}, **parallel}
    if not isinstance(kind, str) or kind not in CHOICES:
        raise ApiError(400, f"tool_choice is {choice!r}; its type must be auto, any, tool or none", param="tool_choice")
    return {"tool_choice": CHOICES[kind], **parallel}


def _messages(fields: Json, ignored: list[str]) -> list[Json]:
    """Converts messages to those of a chat completion. Adds parts of tools that it does not run to `ignored`."""
    found: list[Json] = []
    if "system" in fields:
        found.append({"role": "system", "content": _text(fields["system"], "system")})
    if "messages" not in fields:
        raise ApiError(400, "messages is missing; give a list of at least one", param="messages")
    for at, message in enumerate(typed(list, fields["messages"], "messages")):
        where = f"messages[{at}]"
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role not in ("user", "assistant"):
            raise ApiError(400, f"{where}.role is {role!r}; it must be user or assistant", param="messages")
        if isinstance(content, str):
            found.append({"role": role, "content": content})
            continue
        parts = typed(list, content, f"{where}.content")
        if role == "assistant":
            own = []
            for n, part in enumerate(parts):
                if isinstance(part, dict) and part.get("type") in OF_SERVERS:
                    ignored.append(f"{where}.content[{n}] ({part['type']})")
                else:
                    own.append(part)
            found += _assistant(own, where)
        else:
            found += _user(parts, where)
    return found


def _assistant(parts: list[Any], where: str) -> list[Json]:
    texts, calls, reasoning = [], [], []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_use":
            function = {"name": part.get("name"), "arguments": json.dumps(part.get("input") or {}, ensure_ascii=False)}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "thinking" and isinstance(part.get("thinking"), str):
            reasoning.append(part["thinking"])
        elif kind not in THOUGHTS:
            texts.append(_text([part], f"{where}.content"))
    message: Json = {"role": "assistant", "content": "".join(texts)}
    if any(reasoning):
        message["reasoning_content"] = "".join(reasoning)
    return [{**message, "tool_calls": calls} if calls else message]


def _user(parts: list[Any], where: str) -> list[Json]:
    """Converts a user message; tool results become separate messages before the user's text.

    Tool messages hold only text, so images and files in a result become parts of the user's message.
    """
    results, rest = [], []
    for part in parts:
        if isinstance(part, dict) and part.get("type") == "tool_result":
            given = part.get("content") or ""
            media = [one for one in given if _is_media(one)] if isinstance(given, list) else []
            content = _text([one for one in given if not _is_media(one)] if media else given, f"{where}.content")
            rest += media
            results.append({"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": content})
        else:
            rest.append(part)
    if any(map(_is_media, rest)):
        blocks = [_block(part, where) for part in rest]
        return [*results, {"role": "user", "content": blocks}]
    return results + ([{"role": "user", "content": _text(rest, f"{where}.content")}] if rest else [])


def _is_media(part: Any) -> bool:
    """True for images and for documents that have no text of their own."""
    if not isinstance(part, dict) or part.get("type") not in ("image", "document"):
        return False
    source = part.get("source")
    return part["type"] == "image" or not isinstance(source, dict) or source.get("type") not in ("text", "content")


def _block(part: Any, where: str) -> Json:
    """Converts a block to a part of OpenAI's form."""
    if not _is_media(part):
        return {"type": "text", "text": _text_of(part, f"{where}.content")}
    source = part.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if part["type"] == "document":
        if kind != "base64":
            message = f"{where} has a document that is neither text nor base64 of a PDF; nothing is fetched"
            raise ApiError(400, message, param="messages")
        return file_part(source.get("data"), part.get("title"))
    if kind not in ("base64", "url"):
        raise ApiError(400, f"{where} has an image whose source is neither base64 nor a url", param="messages")
    url = source.get("url") if kind == "url" else f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _text(content: Any, where: str) -> str:
    """Returns a text, or the joined texts of parts."""
    if isinstance(content, str):
        return content
    return "".join(_text_of(part, where) for part in typed(list, content, where))


def _text_of(part: Any, where: str) -> str:
    """The text of a part, which may be a document."""
    kind = part.get("type") if isinstance(part, dict) else part
    source, name = (part.get("source"), "data") if kind == "document" else (part, "text")
    if isinstance(source, dict) and source.get("type") == "text" and isinstance(source.get(name), str):
        return str(source[name])
    if kind == "document" and isinstance(source, dict) and source.get("type") == "content":
        return _text(source.get("content"), where)
    message = f"{where} holds a part of the type {kind!r}; only texts and documents of text are understood here"
    raise ApiError(400, message, param="messages")


def _head(id: str, model: str) -> Json:
    return {"id": id, "type": "message", "role": "assistant", "model": model, "container": None}


def _content(message: Json) -> list[Json]:
    """The content parts of an answer."""
    parts: list[Json] = []
    if message.get("reasoning_content"):
        parts.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
    if message["content"]:
        parts.append({"type": "text", "text": message["content"]})
    for tool in message.get("tool_calls", ()):
        name, arguments = tool["function"]["name"], tool["function"]["arguments"]
        parts.append(_tool_use(tool["id"], name, _object(arguments)))
    return parts


def _tool_use(id: str, name: str, arguments: Any) -> Json:
    id = id.replace("call_", "toolu_")
    return {"type": "tool_use", "id": id, "name": name, "input": arguments, "caller": {"type": "direct"}}


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def _end(running: Running, reason: str, stops: Any) -> Json:
    """The stop reason."""
    [(_, reader)] = running.prepared.requests
    if reader.stopped is not None and reader.stopped in ([stops] if isinstance(stops, str) else stops):
        return {"stop_reason": "stop_sequence", "stop_sequence": reader.stopped, "stop_details": None}
    return {"stop_reason": REASONS.get(reason, "end_turn"), "stop_sequence": None, "stop_details": None}


def _usage(running: Running) -> Json:
    """Token counts; as in this API, cached tokens are not counted as input."""
    stats = running.answers.completions[0].stats
    return {
        "input_tokens": stats.prompt_tokens - stats.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.reused_tokens,
        "output_tokens": stats.new_tokens,
        **dict.fromkeys(NOT_COUNTED),
    }


class Blocks:
    """The content blocks of a stream. A delta goes into the open block of its kind, or begins a new one."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def feed(self, delta: Json) -> bytes:
        """The events for a delta of OpenAI's API."""
        found = b""
        if delta.get("reasoning_content"):
            found += self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            found += self._delta({"type": "thinking_delta", "thinking": delta["reasoning_content"]})
        if delta.get("content"):
            found += self._begin("text", {"type": "text", "text": ""})
            found += self._delta({"type": "text_delta", "text": delta["content"]})
        for tool in delta.get("tool_calls", ()):
            if "id" in tool:
                found += self._begin(tool["id"], _tool_use(tool["id"], tool["function"]["name"], {}))
            else:
                found += self._delta({"type": "input_json_delta", "partial_json": tool["function"]["arguments"]})
        return found

    def close(self) -> bytes:
        """Ends the open block."""
        if self._open is None:
            return b""
        self._open = None
        return event("content_block_stop", index=self._index)

    def _begin(self, kind: str, block: Json) -> bytes:
        if self._open == kind:
            return b""
        ended = self.close()
        self._open = kind
        self._index += 1
        return ended + event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: Json) -> bytes:
        return event("content_block_delta", index=self._index, delta=delta)


async def _events(running: Running, id: str, model: str, stops: Any) -> AsyncGenerator[bytes]:
    blocks, reason = Blocks(), "stop"
    opening = {**_head(id, model), "content": [], **dict.fromkeys(("stop_reason", "stop_sequence", "stop_details"))}
    usage = {**_usage(running), "input_tokens": running.prepared.prompt_tokens}
    yield event("message_start", message={**opening, "usage": usage}) + event("ping")
    async for chunk in chunks_of(running):
        choice = chunk["choices"][0]
        reason = choice["finish_reason"] or reason
        data = blocks.feed(choice["delta"])
        if data:
            yield data
    ended = event("message_delta", delta=_end(running, reason, stops), usage=_usage(running))
    yield blocks.close() + ended + event("message_stop")
