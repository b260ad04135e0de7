"""The application before the replicas: chooses one for each request and passes bytes on. Knows no model.

A conversation stays with the replica that has its beginning stored, unless that one has much more to do than another.
A request whose replica goes before its response has begun is sent to another; a response that has begun is cut off.
"""

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..body import OFF_LOOP, Disconnected, Receive, read
from ..call import EVENT_STREAM, Scope, Send, dumps
from ..errors import ApiError
from .affinity import Affinity, Beginning, beginnings_of
from .merged import merged_health, merged_metrics, merged_slots
from .policy import Load, ranked
from .upstream import FORWARDED, ROUTER_KEY, Headers, ReplicaLost, Upstream, passed_on


def error_body(error: ApiError) -> dict[str, Any]:
    """An error as OpenAI has it."""
    return {"error": {"message": error.message, "type": error.kind, "param": None, "code": error.code}}


MOST_STREAMS = 4096  # that can be resumed
STREAMS = "/v1/streams/"
LOST = b"data: " + dumps(error_body(ApiError(503, "the device of this answer was lost", code="engine_lost"))) + b"\n\n"
RETRY_AFTER = 5  # seconds until a replica may be there again


@dataclass(eq=False)
class Replica:
    """A process that serves one device."""

    number: int
    device: str
    port: int | None = None  # None while it is not there
    is_ready: bool = False  # whether its first model is loaded
    running: int = 0  # requests that it answers


@dataclass(frozen=True)
class Request:
    """A request as it is passed on."""

    method: str
    path: str
    target: bytes  # path and query
    headers: Headers
    body: bytes
    beginnings: Sequence[Beginning] = ()


class Router:
    """Passes requests on to replicas."""

    def __init__(self, replicas: list[Replica], max_body: int, key: str = "") -> None:
        self.replicas = replicas
        self._max_body = max_body
        self._key = key.encode()
        self._affinity: Affinity[int] = Affinity()
        self._streams: OrderedDict[str, Replica] = OrderedDict()  # by the id of a stream that can be resumed
        self._merged: dict[str, Callable[[Request, Send], Awaitable[None]]] = {
            "/metrics": self._metrics,
            "/slots": self._slots,
            "/health": self._health,
            "/v1/health": self._health,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            body = await read(receive, headers, self._max_body)
            large = scope["method"] == "POST" and len(body) > OFF_LOOP
            begins = await asyncio.to_thread(beginnings, headers, body) if large else beginnings(headers, body)
            query = scope["query_string"]
            target = scope.get("raw_path", scope["path"].encode()) + (b"?" + query if query else b"")
            request = Request(scope["method"], scope["path"], target, self._headers(scope), body, begins)
            merged = self._merged.get(request.path) if request.method == "GET" else None
            if merged is not None:
                await merged(request, send)
            else:
                await self._pass_on(request, receive, send)
        except Disconnected:
            return
        except ApiError as error:
            await send_json(send, error.status, error_body(error), error.retry_after)

    def _headers(self, scope: Scope) -> Headers:
        """The headers of a request, with the address of its client in place of what it says itself."""
        client = scope.get("client")
        own = [(name, value) for name, value in scope["headers"] if name.lower() not in (FORWARDED, ROUTER_KEY)]
        return [*own, (FORWARDED, (client[0] if client else "").encode("latin-1")), (ROUTER_KEY, self._key)]

    def lost(self, replica: Replica) -> None:
        """The process of a replica has ended: what it had stored is gone."""
        replica.port, replica.is_ready = None, False
        self._affinity.forget(replica.number)

    def choose(self, request: Request, but: set[int]) -> Replica:
        """The replica for a request, of those that were not tried yet."""
        there = [one for one in self.replicas if one.port is not None and one.number not in but]
        if not there:
            message = "no device of this server is there at the moment; ask again later"
            raise ApiError(503, message, code="no_replica", retry_after=RETRY_AFTER)
        if request.path.startswith(STREAMS):
            owner = self._streams.get(request.path.removeprefix(STREAMS))
            if owner in there:
                return owner
        ready = {one.number: one for one in there if one.is_ready} or {one.number: one for one in there}
        loads = [Load(one.number, one.running) for one in ready.values()]
        chosen = ready[ranked(loads, self._affinity.find(request.beginnings))[0]]
        self._affinity.remember(request.beginnings, chosen.number)
        return chosen

    async def _pass_on(self, request: Request, receive: Receive, send: Send) -> None:
        tried: set[int] = set()
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            while True:
                replica = self.choose(request, tried)
                tried.add(replica.number)
                answering = asyncio.ensure_future(self._answer(request, replica, send))
                await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    answering.cancel()
                    with contextlib.suppress(asyncio.CancelledError, ReplicaLost):
                        await answering
                    return
                if answering.result():
                    return
        finally:
            gone.cancel()

    async def _answer(self, request: Request, replica: Replica, send: Send) -> bool:
        """Passes a response on; false where the replica went before it began, so that another may answer."""
        assert replica.port is not None
        replica.running += 1
        try:
            try:
                upstream = await Upstream.ask(
                    replica.port, request.method, request.target, request.headers, request.body
                )
            except ReplicaLost:
                return False
            with contextlib.closing(upstream):
                self._note_stream(upstream, replica)
                headers = [*passed_on(upstream.headers), (b"x-replica", str(replica.number).encode())]
                await send({"type": "http.response.start", "status": upstream.status, "headers": headers})
                try:
                    async for piece in upstream.body():
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                except ReplicaLost:
                    if (b"content-type", EVENT_STREAM) not in headers:
                        raise  # the connection is closed before its end
                    await send({"type": "http.response.body", "body": LOST, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                return True
        finally:
            replica.running -= 1

    def _note_stream(self, upstream: Upstream, replica: Replica) -> None:
        """Remembers who has a stream that can be resumed."""
        name = dict(upstream.headers).get(b"x-stream-id")
        if name is not None:
            self._streams[name.decode("latin-1")] = replica
            while len(self._streams) > MOST_STREAMS:
                self._streams.popitem(last=False)

    # ---------------------------------------------------------------- what all replicas say together

    async def _metrics(self, request: Request, send: Send) -> None:
        found = await self._ask_all(request, send)
        if found is not None:
            text = merged_metrics({str(one.number): body.decode() for one, (_, body) in found.items()})
            await send_whole(send, 200, b"text/plain; version=0.0.4; charset=utf-8", text.encode())

    async def _slots(self, request: Request, send: Send) -> None:
        found = await self._ask_all(request, send)
        if found is not None:
            slots = merged_slots({str(one.number): json.loads(body) for one, (_, body) in found.items()})
            await send_json(send, 200, slots)

    async def _health(self, request: Request, send: Send) -> None:
        found = await self._ask_all(request, send, refusals=False) or {}
        states = [
            {
                "status": "down",
                **(json.loads(found[one][1]) if one in found else {}),
                "id": one.number,
                "device": one.device,
            }
            for one in self.replicas
        ]
        await send_json(send, *merged_health(states))

    async def _ask_all(
        self, request: Request, send: Send, *, refusals: bool = True
    ) -> dict[Replica, tuple[int, bytes]] | None:
        """The responses of all replicas that are there; None where one refuses, whose refusal is passed on."""

        async def ask(replica: Replica) -> tuple[int, bytes]:
            assert replica.port is not None
            plain = [pair for pair in request.headers if pair[0] not in (b"accept", b"accept-encoding")]
            upstream = await Upstream.ask(replica.port, "GET", request.target, plain, b"")
            with contextlib.closing(upstream):
                return upstream.status, b"".join([piece async for piece in upstream.body()])

        there = [one for one in self.replicas if one.port is not None]
        answers = await asyncio.gather(*map(ask, there), return_exceptions=True)
        found: dict[Replica, tuple[int, bytes]] = {}
        for replica, answer in zip(there, answers, strict=True):
            if isinstance(answer, ReplicaLost):
                continue
            if isinstance(answer, BaseException):
                raise answer
            if refusals and answer[0] != 200:
                await send_whole(send, answer[0], b"application/json", answer[1])
                return None
            found[replica] = answer
        return found


def beginnings(headers: dict[bytes, bytes], body: bytes) -> list[Beginning]:
    """The beginnings of a request; a session is its client's own. None where the body is wrong: the replica says so."""
    session = headers.get(b"x-session-id", b"")
    if session:
        session += b"\0" + headers.get(b"authorization", b"")
    try:
        parsed = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return []
    return beginnings_of(session.decode("latin-1"), parsed) if isinstance(parsed, dict) else []


async def _disconnected(receive: Receive) -> None:
    """Waits until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, status: int, content: Any, retry_after: float | None = None) -> None:
    """JSON as the response."""
    more = [] if retry_after is None else [(b"retry-after", str(round(retry_after)).encode())]
    await send_whole(send, status, b"application/json", dumps(content), more)


async def send_whole(send: Send, status: int, media_type: bytes, content: bytes, more: Headers | None = None) -> None:
    """A response of one piece."""
    headers = [(b"content-type", media_type), (b"content-length", str(len(content)).encode()), *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
