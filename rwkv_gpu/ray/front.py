"""The front of the application: reads requests, has the router choose a replica, and passes responses on. No model.

It exists because the choice goes by the text of a conversation: Ray's proxies look at headers only.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from rwkv_gpu.server.body import OFF_LOOP, Disconnected, Receive, read
from rwkv_gpu.server.call import EVENT_STREAM, Scope, Send
from rwkv_gpu.server.errors import ApiError
from rwkv_gpu.server.replicas.affinity import beginnings_of
from rwkv_gpu.server.replicas.merged import merged_health, merged_metrics, merged_slots
from rwkv_gpu.server.replicas.router import LOST, MOST_STREAMS, error_body, send_json, send_whole

from .ask import REPLICA, STREAM_ID, STREAMS, Ask, Page, plain_scope, stream_beginning
from .settings import Settings

ATTEMPTS = 4  # replicas that may be lost before a response begins
RETRY_AFTER = 1  # seconds until there may be room
LOST_REPLICA = (RayActorError, ReplicaUnavailableError)


class Passing:
    """The ASGI application of the front."""

    def __init__(self, replicas: Any, settings: Settings) -> None:
        self._replicas = replicas  # the handle of the deployment
        self._several = settings.several_models
        self._max_body = settings.setup.config.max_body
        self._streams: OrderedDict[str, str] = OrderedDict()  # the replicas of streams that can be resumed
        self._merged: dict[str, Callable[[Ask, Send], Awaitable[None]]] = {
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
            large = len(body) > OFF_LOOP
            ask = await asyncio.to_thread(self._ask, scope, headers, body) if large else self._ask(scope, headers, body)
            merged = self._merged.get(ask.scope["path"]) if scope["method"] == "GET" else None
            await (merged(ask, send) if merged is not None else self._pass_on(ask, send))
        except Disconnected:
            return
        except ApiError as error:
            await send_json(send, error.status, error_body(error), error.retry_after)

    def _ask(self, scope: Scope, headers: dict[bytes, bytes], body: bytes) -> Ask:
        """The request as the router and a replica need it. What is wrong with the body, the replica says."""
        plain = plain_scope(scope)
        if plain["path"].startswith(STREAMS):
            name = plain["path"].removeprefix(STREAMS)
            return Ask(plain, body, [stream_beginning(name)], home=self._streams.get(name, ""), is_bound=True)
        session = headers.get(b"x-session-id", b"")
        if session:
            session += b"\0" + headers.get(b"authorization", b"")
        try:
            parsed = json.loads(body) if body else {}
        except (ValueError, RecursionError):
            parsed = {}
        if not isinstance(parsed, dict):
            parsed = {}
        model = parsed.get("model") if self._several else None
        begins = beginnings_of(session.decode("latin-1"), parsed)
        return Ask(plain, body, begins, session, model if isinstance(model, str) else "")

    async def _pass_on(self, ask: Ask, send: Send) -> None:
        """Sends the response of a replica. Where that is lost before it began, another one answers."""
        for _ in range(ATTEMPTS):
            response = Response(self, send)
            try:
                await response.pass_on(self._replicas.options(**self._options(ask)).answer.remote(ask))
                return
            except BackPressureError:
                message = "all replicas are busy, and as many requests wait as may; ask again later"
                raise ApiError(429, message, code="queue_full", retry_after=RETRY_AFTER) from None
            except DeploymentUnavailableError as error:
                raise ApiError(503, f"no replica can be started: {error}", code="no_replica") from None
            except LOST_REPLICA:
                if response.has_begun:
                    await response.cut_off()
                    return
        raise ApiError(503, "the replicas of this request were lost; ask again", code="engine_lost", retry_after=1)

    def _options(self, ask: Ask) -> dict[str, Any]:
        return {"stream": True, **({"multiplexed_model_id": ask.model} if ask.model else {})}

    def note_stream(self, name: str, replica: str) -> None:
        """Remembers who has a stream that can be resumed."""
        self._streams[name] = replica
        while len(self._streams) > MOST_STREAMS:
            self._streams.popitem(last=False)

    # ---------------------------------------------------------------- pages about all replicas

    async def _all(self, ask: Ask, send: Send) -> dict[str, bytes] | None:
        """The bodies of all replicas by name; None where one refuses, whose refusal is passed on."""
        found = {}
        for one in await self._pages(ask):
            if one.status != 200:
                await send_whole(send, one.status, b"application/json", one.body)
                return None
            found[one.replica] = one.body
        return found

    async def _pages(self, ask: Ask) -> list[Page]:
        pages: list[Page] = await asyncio.to_thread(lambda: self._replicas.broadcast("page", ask).results(timeout_s=10))
        return sorted(pages, key=lambda one: one.replica)

    async def _metrics(self, ask: Ask, send: Send) -> None:
        plain = [pair for pair in ask.scope["headers"] if pair[0] not in (b"accept", b"accept-encoding")]
        found = await self._all(Ask({**ask.scope, "headers": plain}, b""), send)
        if found is not None:
            text = merged_metrics({name: body.decode() for name, body in found.items()})
            await send_whole(send, 200, b"text/plain; version=0.0.4; charset=utf-8", text.encode())

    async def _slots(self, ask: Ask, send: Send) -> None:
        found = await self._all(ask, send)
        if found is not None:
            await send_json(send, 200, merged_slots({name: json.loads(body) for name, body in found.items()}))

    async def _health(self, ask: Ask, send: Send) -> None:
        pages = await self._pages(ask)
        states = [{**json.loads(one.body), "id": one.replica, "device": one.device} for one in pages]
        await send_json(send, *merged_health(states))


class Response:
    """A response on its way to the client."""

    def __init__(self, front: Passing, send: Send) -> None:
        self._front = front
        self._send = send
        self.has_begun = False
        self._is_stream = False

    async def pass_on(self, batches: Any) -> None:
        """Sends the messages of a replica as they come."""
        async for batch in batches:
            for message in batch:
                if message["type"] == "http.response.start":
                    self._begin(message)
                await self._send(message)

    def _begin(self, message: dict[str, Any]) -> None:
        self.has_begun = True
        # Ray's proxy sends the id of a request itself, which it gave the request before.
        message["headers"] = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
        headers = dict(message["headers"])
        self._is_stream = headers.get(b"content-type") == EVENT_STREAM
        if STREAM_ID in headers:
            self._front.note_stream(headers[STREAM_ID].decode(), headers[REPLICA].decode())

    async def cut_off(self) -> None:
        """The replica is lost: a stream says so, any other response ends before its end."""
        if not self._is_stream:
            raise ConnectionError("the replica of this response was lost")
        await self._send({"type": "http.response.body", "body": LOST, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})


@serve.ingress(None)
class Front:
    """The deployment that Ray's proxies call."""

    def __init__(self, replicas: Any, settings: Settings) -> None:
        self._passing = Passing(replicas, settings)

    def __serve_build_asgi_app__(self) -> Passing:
        return self._passing
