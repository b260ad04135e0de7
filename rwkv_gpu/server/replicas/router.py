"""The application in front of the replicas: chooses one for each request, and passes bytes on. Loads no model.

A conversation stays with the replica that has its prefix stored, unless that one is much busier than another. If a
replica is lost before its response begins, the request goes to another; a response that has begun is cut off.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..body import Receive
from ..call import EVENT_STREAM, Scope, Send
from ..errors import ApiError
from .affinity import Affinity
from .gateway import LOST, REPLICA, Gateway, Incoming, Page
from .policy import Load, ranked
from .upstream import FORWARDED, ROUTER_KEY, Headers, ReplicaLost, Upstream, passed_on

RETRY_AFTER = 5  # seconds until a replica may be available again


@dataclass(eq=False)
class Replica:
    """A process that serves one device."""

    number: int
    device: str
    port: int | None = None  # None while it is not running
    is_ready: bool = False  # whether its first model is loaded
    running: int = 0  # requests in progress


class Router(Gateway[int]):
    """Passes requests on to replicas."""

    def __init__(self, replicas: list[Replica], max_body: int, key: str = "", keys: Sequence[str] = ()) -> None:
        super().__init__(max_body, keys)
        self.replicas = replicas
        self._key = key.encode()
        self._affinity: Affinity[int] = Affinity()

    def lost(self, replica: Replica) -> None:
        """Handles the end of a replica's process: its stored states are gone."""
        replica.port, replica.is_ready = None, False
        self._affinity.forget(replica.number)

    def choose(self, request: Incoming, but: set[int]) -> Replica:
        """The replica for a request, excluding those already tried."""
        there = {one.number: one for one in self.replicas if one.port is not None and one.number not in but}
        if not there:
            message = "no device of this server is there at the moment; ask again later"
            raise ApiError(503, message, code="no_replica", retry_after=RETRY_AFTER)
        owner = self.replica_of_stream(request)
        if owner in there:
            return there[owner]
        ready = {number: one for number, one in there.items() if one.is_ready} or there
        loads = [Load(one.number, one.running) for one in ready.values()]
        chosen = ready[ranked(loads, self._affinity.find(request.beginnings))[0]]
        self._affinity.remember(request.beginnings, chosen.number)
        return chosen

    async def pass_on(self, request: Incoming, receive: Receive, send: Send) -> None:
        """Sends the response of a replica. If it is lost before the response begins, another one answers."""
        tried: set[int] = set()
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            while True:
                replica = self.choose(request, tried)
                tried.add(replica.number)
                replica.running += 1  # before any other code runs, so that simultaneous requests are spread
                try:
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
                    replica.running -= 1
        finally:
            gone.cancel()

    async def _answer(self, request: Incoming, replica: Replica, send: Send) -> bool:
        """Passes a response on. False if the replica was lost before the response began: then another may answer."""
        try:
            upstream = await self._ask(request, replica)
        except ReplicaLost:
            return False
        with contextlib.closing(upstream):
            self.remember_stream(upstream.headers, replica.number)
            headers = [*passed_on(upstream.headers), (REPLICA, str(replica.number).encode())]
            await send({"type": "http.response.start", "status": upstream.status, "headers": headers})
            try:
                async for piece in upstream.body():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except ReplicaLost:
                if (b"content-type", EVENT_STREAM) not in headers:
                    raise  # the connection is closed early
                await send({"type": "http.response.body", "body": LOST, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            return True

    async def pages(self, request: Incoming) -> Sequence[Page]:
        """The responses of all replicas; one that is lost meanwhile counts as down."""
        return await asyncio.gather(*(self._page(request, replica) for replica in self.replicas))

    async def _page(self, request: Incoming, replica: Replica) -> Page:
        if replica.port is not None:
            with contextlib.suppress(ReplicaLost):
                with contextlib.closing(await self._ask(request, replica)) as upstream:
                    body = b"".join([piece async for piece in upstream.body()])
                return Page(replica.number, replica.device, upstream.status, body)
        return Page(replica.number, replica.device, None)

    async def _ask(self, request: Incoming, replica: Replica) -> Upstream:
        """Sends a request to a replica."""
        assert replica.port is not None
        scope = request.scope
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        return await Upstream.ask(replica.port, scope["method"], target, self._headers(scope), request.body)

    def _headers(self, scope: Scope) -> Headers:
        """The headers of a request, with the client's actual address."""
        client = scope.get("client")
        own = [(name, value) for name, value in scope["headers"] if name.lower() not in (FORWARDED, ROUTER_KEY)]
        if scope["http_version"] == "1.0" and not any(name.lower() == b"host" for name, _ in own):
            own.append((b"host", b"localhost"))  # required by HTTP/1.1, which the router speaks to replicas
        return [*own, (FORWARDED, (client[0] if client else "").encode("latin-1")), (ROUTER_KEY, self._key)]


async def _disconnected(receive: Receive) -> None:
    """Waits until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
