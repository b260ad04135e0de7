"""OpenAI's Responses API over chats, whole and streamed. Nothing is stored: each request brings all of its input."""

import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rwkv_gpu.llm.completion import Completion, Event

from .call import Call, Family, Json, Response, Stream, Whole, dumps
from .endpoint import Endpoint
from .errors import ApiError
from .fields import RESPONSES, honoured
from .openai import error_body, model_name, wants_stream
from .routes import Route, delete, get, post
from .service import Running, Service

TEXTS = ("input_text", "output_text", "text")  # types of parts that are text
REPEATED = (  # fields that a response says again
    "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning", "temperature", "text",
    "tool_choice", "tools", "top_p", "truncation", "user",
)  # fmt: skip


def routes(service: Service) -> list[Route]:
    """The route of this API; what would need a store of responses says so."""
    endpoint = partial(Endpoint, service, FAMILY)
    return [
        post("/v1/responses", endpoint(responses, takes_body=True)),
        get("/v1/responses/{id:path}", endpoint(stored)),
        delete("/v1/responses/{id:path}", endpoint(stored)),
    ]


async def stored(_service: Service, _call: Call) -> Response:
    """Responses are not stored."""
    raise ApiError(501, "responses are not stored here; a stream with resumable can be read again at /v1/streams/ID")


def error_event(error: ApiError, request_id: str) -> bytes:
    """The last event of a stream that failed."""
    said = {"type": "error", "code": error.code or error.kind, "message": error.message, "param": error.param}
    return b"event: error\ndata: " + dumps({**said, "request_id": request_id}) + b"\n\n"


FAMILY = Family(error_body, error_event)


async def responses(service: Service, call: Call) -> Response:
    """An answer to an input: a text, or items."""
    fields = honoured(call, RESPONSES)
    name, stream = model_name(fields), wants_stream(fields)
    asked = request_of(fields)
    served = service.catalogue.find(name)
    running = await service.begin(call, name, lambda llm: llm.prepare_chat_completion(**asked))
    made = Made(call.body, served.name, f"resp_{uuid.uuid4().hex}")
    if stream:
        return Stream(_events(running, made))
    await running.wait()
    return Whole(made.response("completed", running.answers.completions[0]))


def request_of(fields: Json) -> Json:
    """The same request as one for a chat completion."""
    asked = {name: value for name, value in fields.items() if name not in NOT_CHAT}
    asked["messages"] = messages_of(fields.get("input"), fields.get("instructions"))
    if "max_output_tokens" in fields:
        asked["max_tokens"] = fields["max_output_tokens"]
    for name in ("text", "reasoning"):
        if not isinstance(fields.get(name, {}), Mapping):
            raise ApiError(400, f"{name} is {fields[name]!r}; it must be an object", param=name)
    form, effort = fields.get("text", {}).get("format"), fields.get("reasoning", {}).get("effort")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        asked["response_format"] = {"type": "json_schema", "json_schema": {**form}}
    elif form is not None:
        asked["response_format"] = form
    if effort is not None:
        asked["think"] = effort != "none"
    return asked


NOT_CHAT = ("input", "instructions", "max_output_tokens", "text", "reasoning")


def messages_of(given: Any, instructions: Any) -> list[Json]:
    """The input as messages of a chat."""
    messages = [{"role": "system", "content": instructions}] if instructions is not None else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise ApiError(400, "input is missing; give a text or a list of items", param="input")
    return messages + [one for at, item in enumerate(given) if (one := _message(item, f"input[{at}]")) is not None]


def _message(item: Any, where: str) -> Json | None:
    """A message of an item; None for the reasoning of earlier answers, which templates leave out as well."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "reasoning":
        return None
    if kind != "message":
        raise ApiError(400, f"{where} has the type {kind!r}; this server takes message and reasoning", param="input")
    role = "system" if item.get("role") == "developer" else item.get("role")
    content = item.get("content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") not in TEXTS or not isinstance(part.get("text"), str):
                message = f"{where}.content holds a part that is no text; only text is understood"
                raise ApiError(400, message, param="input")
        content = "".join(part["text"] for part in content)
    return {"role": role, "content": content}


@dataclass(frozen=True)
class Made:
    """One response: what all its forms have in common."""

    body: Json
    model: str
    id: str
    created: int = field(default_factory=lambda: int(time.time()))
    message_id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    reasoning_id: str = field(default_factory=lambda: f"rs_{uuid.uuid4().hex}")

    def response(self, status: str, completion: Completion | None = None) -> Json:
        """The response as a whole; without a completion, as it begins."""
        said: Json = {"status": status, "output": [], "usage": None, "incomplete_details": None, "error": None}
        if completion is not None:
            if completion.finish_reason == "length":
                said |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
            reasoning = [self.reasoning(completion.reasoning)] if completion.reasoning else []
            said["output"] = [*reasoning, self.message(completion.text, said["status"])]
            said["usage"] = _usage(completion)
        repeated = {name: self.body.get(name) for name in REPEATED}
        repeated |= {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
        repeated["metadata"] = self.body.get("metadata") or {}
        head = {"id": self.id, "object": "response", "created_at": self.created, "model": self.model}
        return {**head, **repeated, **said, "previous_response_id": None, "store": False, "background": False}

    def message(self, text: str, status: str) -> Json:
        """The item of the answer."""
        return {
            "id": self.message_id, "type": "message", "role": "assistant", "status": status,
            "content": [text_part(text)],
        }  # fmt: skip

    def reasoning(self, text: str) -> Json:
        """The item of the reasoning before it."""
        content = [{"type": "reasoning_text", "text": text}] if text else []
        return {"id": self.reasoning_id, "type": "reasoning", "summary": [], "content": content, "status": "completed"}


def text_part(text: str) -> Json:
    """A part of an answer."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(completion: Completion) -> Json:
    stats = completion.stats
    return {
        "input_tokens": stats.prompt_tokens,
        "input_tokens_details": {"cached_tokens": stats.reused_tokens},
        "output_tokens": stats.new_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": stats.prompt_tokens + stats.new_tokens,
    }


class Events:
    """The events of a stream, numbered in order."""

    def __init__(self, made: Made) -> None:
        self._made = made
        self._number = 0
        self._items = 0  # that are complete
        self._open: str | None = None  # the kind of the item that is being written
        self._text = ""

    def event(self, kind: str, **data: Any) -> bytes:
        """One event."""
        content = dumps({"type": kind, "sequence_number": self._number, **data})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + content + b"\n\n"

    def text(self, one: Event) -> bytes:
        """Some text, within the item that it belongs to."""
        if not one.text:
            return b""
        kind = "reasoning" if one.thinking else "message"
        begun = b"" if self._open == kind else self.close("completed") + self._begin(kind)
        self._text += one.text
        name = "response.reasoning_text.delta" if one.thinking else "response.output_text.delta"
        more: Json = {} if one.thinking else {"logprobs": []}
        return begun + self.event(name, **self._place, delta=one.text, **more)

    def close(self, status: str) -> bytes:
        """The end of the item that is being written, if there is one."""
        kind, text, place = self._open, self._text, self._place
        if kind is None:
            return b""
        if kind == "reasoning":
            done = self.event("response.reasoning_text.done", **place, text=text)
            item = self._made.reasoning(text)
        else:
            done = self.event("response.output_text.done", **place, text=text, logprobs=[])
            done += self.event("response.content_part.done", **place, part=text_part(text))
            item = self._made.message(text, status)
        done += self.event("response.output_item.done", output_index=self._items, item=item)
        self._open, self._text = None, ""
        self._items += 1
        return done

    def ensure_message(self) -> bytes:
        """Begins the item of the answer where there was no text for it."""
        return b"" if self._open == "message" else self.close("completed") + self._begin("message")

    def _begin(self, kind: str) -> bytes:
        self._open = kind
        if kind == "reasoning":
            item = {**self._made.reasoning(""), "status": "in_progress"}
            return self.event("response.output_item.added", output_index=self._items, item=item)
        item = {**self._made.message("", "in_progress"), "content": []}
        added = self.event("response.output_item.added", output_index=self._items, item=item)
        return added + self.event("response.content_part.added", **self._place, part=text_part(""))

    @property
    def _place(self) -> Json:
        id = self._made.reasoning_id if self._open == "reasoning" else self._made.message_id
        return {"item_id": id, "output_index": self._items, "content_index": 0}


async def _events(running: Running, made: Made) -> AsyncGenerator[bytes]:
    events = Events(made)
    begun = made.response("in_progress")
    yield events.event("response.created", response=begun) + events.event("response.in_progress", response=begun)
    async for news in running:
        yield b"".join([events.text(one) for _, one in news if isinstance(one, Event)])
    completion = running.answers.completions[0]
    ended = made.response("completed", completion)
    yield events.ensure_message()
    yield events.close(ended["status"]) + events.event(f"response.{ended['status']}", response=ended)
