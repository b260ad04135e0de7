"""OpenAI's Responses API over chats, whole and streamed. Requests can continue the latest responses."""

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial

from rwkv_gpu.llm.unique import unique

from .answers import Answer
from .call import Call, Family, Json, Response, Stream, Whole, dumps
from .chunks import chunks_of
from .endpoint import Endpoint
from .errors import ApiError, typed
from .fields import RESPONSES, honoured
from .openai import error_body, model_name, wants_stream
from .response_input import items_of, request_of
from .response_output import Event, Output
from .routes import Route, delete, get, post
from .service import Running, Service

REPEATED = (  # fields that a response repeats
    "instructions", "max_output_tokens", "reasoning", "temperature", "top_p", "truncation",
)  # fmt: skip


def routes(service: Service) -> list[Route]:
    """The routes of this API."""
    endpoint = partial(Endpoint, service, FAMILY)
    return [
        post("/v1/responses", endpoint(responses, takes_body=True)),
        post("/responses", endpoint(responses, takes_body=True)),
        post("/v1/responses/input_tokens", endpoint(input_tokens, takes_body=True)),
        post("/responses/input_tokens", endpoint(input_tokens, takes_body=True)),
        get("/v1/responses/{id}", endpoint(stored)),
        delete("/v1/responses/{id}", endpoint(remove)),
    ]


async def stored(service: Service, call: Call) -> Response:
    """A stored response."""
    return Whole(service.responses.get(call.path_params["id"], call.owner).response)


async def remove(service: Service, call: Call) -> Response:
    """Removes a stored response."""
    service.responses.delete(call.path_params["id"], call.owner)
    return Whole({"id": call.path_params["id"], "object": "response", "deleted": True})


async def input_tokens(service: Service, call: Call) -> Response:
    """Counts the tokens of an input."""
    fields = honoured(call, RESPONSES)
    name, _ = model_name(fields), wants_stream(fields)
    _before(service, call, fields)
    asked = request_of(fields, call.ignored)
    return Whole({"object": "response.input_tokens", "input_tokens": await service.count(call, name, asked)})


def _before(service: Service, call: Call, fields: Json) -> None:
    """If a previous response is named, puts its items before the input. Resolves references to items."""
    previous, given = fields.get("previous_response_id"), fields.get("input")
    if isinstance(given, list):
        given = fields["input"] = [
            service.responses.item(one.get("id"), call.owner)
            if isinstance(one, dict) and one.get("type") == "item_reference"
            else one
            for one in given
        ]
    if previous is None or not given:
        return
    if not isinstance(previous, str):
        message = f"previous_response_id is {previous!r}; it must be the id of a response"
        raise ApiError(400, message, param="previous_response_id")
    before = service.responses.get(previous, call.owner, "previous_response_id").items
    fields["input"] = [*before, *items_of(given)]


def error_event(error: ApiError, request_id: str) -> bytes:
    """The last event of a stream that failed."""
    fields = {"type": "error", "code": error.code or error.kind, "message": error.message, "param": error.param}
    return b"event: error\ndata: " + dumps({**fields, "request_id": request_id}) + b"\n\n"


FAMILY = Family(error_body, error_event)


async def responses(service: Service, call: Call) -> Response:
    """Answers an input: a text, or items."""
    fields = honoured(call, RESPONSES)
    name, stream = model_name(fields), wants_stream(fields)
    stores = typed(bool, fields.get("store", True), "store")
    _before(service, call, fields)
    asked = request_of(fields, call.ignored)
    served = service.catalogue.find(name)
    running = await service.begin(
        call, name, lambda llm, **more: llm.prepare_chat_completion(**asked | more), asked["messages"]
    )
    made = ResponseData(call.body, served.name, f"resp_{unique()}")

    def keep(response: Json) -> None:
        if stores:
            service.responses.add(call.owner, response, [*items_of(fields.get("input")), *response["output"]])

    if stream:
        return Stream(_events(running, made, keep))
    output = Output()
    async for chunk in chunks_of(running):
        output.feed(chunk["choices"][0]["delta"])
    _, response = made.ended(output, running.answers.each[0])
    keep(response)
    return Whole(response)


@dataclass(frozen=True)
class ResponseData:
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
        repeated["previous_response_id"] = self.body.get("previous_response_id")
        return {**head, **repeated, **fields, "store": self.body.get("store") is not False, "background": False}


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


async def _events(running: Running, made: ResponseData, keep: Callable[[Json], None]) -> AsyncGenerator[bytes]:
    numbered, output, begun, told = Numbered(), Output(), made.begun(), dict[str, Json]()
    yield numbered.events([("created", {"response": begun}), ("in_progress", {"response": begun})])
    async for chunk in chunks_of(running):
        told = {"timings": chunk["timings"]} if running.prepared.reply.fields.timings else {}
        events = output.feed(chunk["choices"][0]["delta"])
        if "prompt_progress" in chunk:
            events = [("in_progress", {"response": begun, "prompt_progress": chunk["prompt_progress"]})]
        data = numbered.events([(kind, {**fields, **told}) for kind, fields in events])
        if data:
            yield data
    last, response = made.ended(output, running.answers.each[0])
    keep(response)
    yield numbered.events([*last, (response["status"], {"response": response, **told})])
