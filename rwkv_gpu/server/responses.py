"""OpenAI's Responses API over chats, whole and streamed. Nothing is stored: each request carries its full input."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import partial

from rwkv_gpu.llm.unique import unique

from .answers import Answer
from .call import Call, Family, Json, Response, Stream, Whole, dumps
from .chunks import chunks_of
from .endpoint import Endpoint
from .errors import ApiError
from .fields import RESPONSES, honoured
from .openai import error_body, model_name, wants_stream
from .response_input import request_of
from .response_output import Event, Output
from .routes import Route, delete, get, post
from .service import Running, Service

REPEATED = (  # fields that a response repeats
    "instructions", "max_output_tokens", "reasoning", "temperature", "top_p", "truncation",
)  # fmt: skip


def routes(service: Service) -> list[Route]:
    """The routes of this API; those that would need stored responses are refused."""
    endpoint = partial(Endpoint, service, FAMILY)
    return [
        post("/v1/responses", endpoint(responses, takes_body=True)),
        get("/v1/responses/{id:path}", endpoint(stored)),
        delete("/v1/responses/{id:path}", endpoint(stored)),
    ]


async def stored(_service: Service, _call: Call) -> Response:
    """Refused: responses are not stored."""
    raise ApiError(501, "responses are not stored here; a stream with resumable can be read again at /v1/streams/ID")


def error_event(error: ApiError, request_id: str) -> bytes:
    """The last event of a stream that failed."""
    fields = {"type": "error", "code": error.code or error.kind, "message": error.message, "param": error.param}
    return b"event: error\ndata: " + dumps({**fields, "request_id": request_id}) + b"\n\n"


FAMILY = Family(error_body, error_event)


async def responses(service: Service, call: Call) -> Response:
    """Answers an input: a text, or items."""
    fields = honoured(call, RESPONSES)
    name, stream = model_name(fields), wants_stream(fields)
    asked = request_of(fields, call.ignored)
    served = service.catalogue.find(name)
    running = await service.begin(call, name, lambda llm, **more: llm.prepare_chat_completion(**asked, **more))
    made = Made(call.body, served.name, f"resp_{unique()}")
    if stream:
        return Stream(_events(running, made))
    output = Output()
    async for chunk in chunks_of(running):
        output.feed(chunk["choices"][0]["delta"])
    return Whole(made.ended(output, running.answers.each[0])[1])


@dataclass(frozen=True)
class Made:
    """One response: the data shared by all its forms."""

    body: Json
    model: str
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def begun(self) -> Json:
        """The response before its output."""
        return self._response({"status": "in_progress", "output": [], "usage": None, "incomplete_details": None})

    def ended(self, output: Output, answer: Answer) -> tuple[list[Event], Json]:
        """The last events of the output, and the complete response."""
        cut = answer.completion.finish_reason == "length"
        status = "incomplete" if cut else "completed"
        events = output.end(status)
        fields: Json = {"status": status, "output": output.items, "usage": _usage(answer)}
        fields["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        return events, self._response(fields)

    def _response(self, fields: Json) -> Json:
        head = {"id": self.id, "object": "response", "created_at": self.created, "model": self.model, "error": None}
        repeated = {name: self.body.get(name) for name in REPEATED}
        repeated |= {"tools": self.body.get("tools") or [], "tool_choice": self.body.get("tool_choice") or "auto"}
        repeated["parallel_tool_calls"] = self.body.get("parallel_tool_calls") is not False
        repeated["metadata"] = self.body.get("metadata") or {}
        repeated["text"] = {"format": {"type": "text"}, **(self.body.get("text") or {})}
        if self.body.get("user") is not None:
            repeated["user"] = self.body["user"]
        return {**head, **repeated, **fields, "previous_response_id": None, "store": False, "background": False}


def _usage(answer: Answer) -> Json:
    stats = answer.completion.stats
    reasoning = sum(event.thinking and event.token is not None for event in answer.events)
    return {
        "input_tokens": stats.prompt_tokens,
        "input_tokens_details": {"cached_tokens": stats.reused_tokens},
        "output_tokens": stats.new_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": stats.prompt_tokens + stats.new_tokens,
    }


class Numbered:
    """Encodes events, numbered in order."""

    def __init__(self) -> None:
        self._number = 0

    def events(self, events: list[Event]) -> bytes:
        """Encodes several events."""
        return b"".join([self._event(f"response.{kind}", data) for kind, data in events])

    def _event(self, kind: str, data: Json) -> bytes:
        content = dumps({"type": kind, "sequence_number": self._number, **data})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + content + b"\n\n"


async def _events(running: Running, made: Made) -> AsyncGenerator[bytes]:
    numbered, output, begun = Numbered(), Output(), made.begun()
    yield numbered.events([("created", {"response": begun}), ("in_progress", {"response": begun})])
    async for chunk in chunks_of(running):
        data = numbered.events(output.feed(chunk["choices"][0]["delta"]))
        if data:
            yield data
    last, response = made.ended(output, running.answers.each[0])
    yield numbered.events([*last, (response["status"], {"response": response})])
