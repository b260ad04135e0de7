"""Entry to several replicas: reads requests, passes each to one replica, and merges the pages about all of them.

The router of one machine and the front of a Ray cluster are gateways. They differ in how they choose and reach a
replica.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from ..body import OFF_LOOP, Disconnected, Receive, read
from ..call import Scope, Send, below_root, dumps
from ..errors import ApiError
from ..keys import opens, owner_of
from .affinity import Beginning, beginnings_of
from .merged import merged_health, merged_metrics, merged_slots
from .policy import Name
from .upstream import Headers

MAX_STREAMS = 4096  # resumable streams
STREAMS = "/v1/streams/"
STREAM_ID = b"x-stream-id"
REPLICA = b"x-replica"
JSON = b"application/json"
COMPRESSION = (b"accept", b"accept-encoding")  # not forwarded for merged pages, which must arrive as plain text


def error_body(error: ApiError) -> dict[str, Any]:
    """An error in OpenAI's format."""
    return {"error": {"message": error.message, "type": error.kind, "param": None, "code": error.code}}


LOST = b"data: " + dumps(error_body(ApiError(503, "the device of this answer was lost", code="engine_lost"))) + b"\n\n"


@dataclass(frozen=True)
class Incoming:
    """A request, and the data for choosing its replica."""

    scope: Scope  # ASGI scope; its path excludes the application's prefix
    body: bytes = field(repr=False)
    session: bytes = b""  # session named by the client, combined with its key
    beginnings: Sequence[Beginning] = ()  # prefixes of its conversation, longest last
    model: str = ""
    stream: str = ""  # the stream that it resumes


@dataclass(frozen=True)
class Page:
    """A replica's response to a request for a page about all of them."""

    replica: int | str
    device: str
    status: int | None  # None if the replica is down
    body: bytes = b""


class Gateway(ABC, Generic[Name]):
    """The ASGI application of a gateway. `Name` identifies a replica."""

    def __init__(self, max_body: int, keys: Sequence[str] = ()) -> None:
        self._max_body, self._keys = max_body, keys
        self._streams: OrderedDict[str, Name] = OrderedDict()  # the replicas of resumable streams
        self._merged: dict[str, Callable[[Sequence[Page], Send], Awaitable[None]]] = {
            "/metrics": _send_metrics,
            "/slots": _send_slots,
            "/health": _send_health,
            "/v1/health": _send_health,
        }

    @abstractmethod
    async def pass_on(self, request: Incoming, receive: Receive, send: Send) -> None:
        """Sends the response of a replica."""

    @abstractmethod
    async def pages(self, request: Incoming) -> Sequence[Page]:
        """The responses of all replicas to one request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            # The body is not read: a replica refuses requests without a key in any case.
            allowed = not self._keys or opens(owner_of(headers), self._keys)
            body = await read(receive, headers, self._max_body) if allowed else b""
            scope = below_root(scope)
            if len(body) > OFF_LOOP:
                request = await asyncio.to_thread(incoming, scope, headers, body)
            else:
                request = incoming(scope, headers, body)
            merged = self._merged.get(scope["path"]) if scope["method"] == "GET" else None
            if merged is None:
                await self.pass_on(request, receive, send)
            else:
                plain = [pair for pair in scope["headers"] if pair[0].lower() not in COMPRESSION]
                await merged(await self.pages(Incoming({**scope, "headers": plain}, b"")), send)
        except Disconnected:
            return
        except ApiError as error:
            await send_json(send, error.status, error_body(error), error.retry_after)

    def remember_stream(self, headers: Headers, replica: Name) -> None:
        """Remembers which replica has a resumable stream, by the headers of its response."""
        name = dict(headers).get(STREAM_ID)
        if name is not None:
            self._streams[name.decode("latin-1")] = replica
            while len(self._streams) > MAX_STREAMS:
                self._streams.popitem(last=False)

    def replica_of_stream(self, request: Incoming) -> Name | None:
        """The replica of the stream that a request resumes."""
        return self._streams.get(request.stream) if request.stream else None


def incoming(scope: Scope, headers: dict[bytes, bytes], body: bytes) -> Incoming:
    """The request with its conversation. If the body is invalid, the replica reports that."""
    if scope["path"].startswith(STREAMS):
        return Incoming(scope, body, stream=scope["path"].removeprefix(STREAMS))
    session = headers.get(b"x-session-id", b"")
    if session:
        session += b"\0" + headers.get(b"authorization", b"")
    try:
        parsed = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        return Incoming(scope, body, session)
    model = parsed.get("model")
    beginnings = beginnings_of(session.decode("latin-1"), parsed, owner_of(headers))
    return Incoming(scope, body, session, beginnings, model if isinstance(model, str) else "")


async def _bodies(pages: Sequence[Page], send: Send) -> dict[str, bytes] | None:
    """The bodies of all running replicas, by name. If a replica refuses, sends its refusal and returns None."""
    up = [page for page in pages if page.status is not None]
    for page in up:
        if page.status != 200:
            await send_whole(send, page.status or 500, JSON, page.body)
            return None
    return {str(page.replica): page.body for page in up}


async def _send_metrics(pages: Sequence[Page], send: Send) -> None:
    bodies = await _bodies(pages, send)
    if bodies is not None:
        text = merged_metrics({name: body.decode() for name, body in bodies.items()})
        await send_whole(send, 200, b"text/plain; version=0.0.4; charset=utf-8", text.encode())


async def _send_slots(pages: Sequence[Page], send: Send) -> None:
    bodies = await _bodies(pages, send)
    if bodies is not None:
        await send_json(send, 200, merged_slots({name: json.loads(body) for name, body in bodies.items()}))


async def _send_health(pages: Sequence[Page], send: Send) -> None:
    states = []
    for page in pages:
        state = {"status": "down"} if page.status is None else json.loads(page.body)
        states.append({**state, "id": page.replica, "device": page.device})
    await send_json(send, *merged_health(states))


async def send_json(send: Send, status: int, content: Any, retry_after: float | None = None) -> None:
    """Sends JSON as the response."""
    more = [] if retry_after is None else [(b"retry-after", str(round(retry_after)).encode())]
    await send_whole(send, status, JSON, dumps(content), more)


async def send_whole(send: Send, status: int, media_type: bytes, content: bytes, more: Headers | None = None) -> None:
    """Sends a response in one piece."""
    headers = [(b"content-type", media_type), (b"content-length", str(len(content)).encode()), *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
