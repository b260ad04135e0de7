"""The front of the application: reads requests, lets the router choose a replica, and passes responses on.

Has no model.

It exists because the choice depends on the text of a conversation, while Ray's proxies see only headers.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from rwkv_gpu.server.body import Receive
from rwkv_gpu.server.call import EVENT_STREAM, Send
from rwkv_gpu.server.errors import ApiError
from rwkv_gpu.server.replicas.gateway import LOST, REPLICA, Gateway, Incoming, Page

from .ask import RoutedRequest, plain_scope, stream_beginning
from .settings import Settings

ATTEMPTS = 4  # replicas that may be lost before a response begins
RETRY_AFTER = 1  # seconds until there may be room
LOST_REPLICA = (RayActorError, ReplicaUnavailableError)


class FrontGateway(Gateway[str]):
    """The gateway whose replicas Ray starts, chooses and reaches."""

    def __init__(self, replicas: Any, settings: Settings) -> None:
        super().__init__(settings.setup.config.max_body, settings.setup.config.api_keys)
        self._replicas = replicas  # handle of the deployment
        self._several = settings.several_models

    def _ask(self, request: Incoming) -> RoutedRequest:
        """The request in the form for the request router and a replica."""
        scope = plain_scope(request.scope)
        if request.stream:
            home = self.replica_of_stream(request) or ""
            return RoutedRequest(scope, request.body, [stream_beginning(request.stream)], home=home, is_bound=True)
        model = request.model if self._several else ""
        return RoutedRequest(scope, request.body, request.beginnings, request.session, model)

    async def pass_on(self, request: Incoming, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Sends the response of a replica. If it is lost before the response begins, another one answers."""
        ask = self._ask(request)
        options = {"stream": True, **({"multiplexed_model_id": ask.model} if ask.model else {})}
        for _ in range(ATTEMPTS):
            response = Response(self, send)
            try:
                await response.pass_on(self._replicas.options(**options).answer.remote(ask))
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

    async def pages(self, request: Incoming) -> Sequence[Page]:
        """The responses of all replicas."""
        ask = RoutedRequest(plain_scope(request.scope), b"")
        pages: list[Page] = await asyncio.to_thread(lambda: self._replicas.broadcast("page", ask).results(timeout_s=10))
        return sorted(pages, key=lambda page: page.replica)


class Response:
    """A response being sent to the client."""

    def __init__(self, gateway: FrontGateway, send: Send) -> None:
        self._gateway = gateway
        self._send = send
        self.has_begun = False
        self._is_stream = False

    async def pass_on(self, batches: Any) -> None:
        """Sends the messages of a replica as they arrive."""
        async for batch in batches:
            for message in batch:
                if message["type"] == "http.response.start":
                    self._begin(message)
                await self._send(message)

    def _begin(self, message: dict[str, Any]) -> None:
        self.has_begun = True
        # Ray's proxy sends the request id itself, which it assigned before.
        message["headers"] = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
        headers = dict(message["headers"])
        self._is_stream = headers.get(b"content-type") == EVENT_STREAM
        self._gateway.remember_stream(message["headers"], headers[REPLICA].decode())

    async def cut_off(self) -> None:
        """Handles a lost replica: a stream gets an error, any other response is cut off."""
        if not self._is_stream:
            raise ConnectionError("the replica of this response was lost")
        await self._send({"type": "http.response.body", "body": LOST, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})


@serve.ingress(None)
class Front:
    """The deployment that Ray's proxies call."""

    def __init__(self, replicas: Any, settings: Settings) -> None:
        self._gateway = FrontGateway(replicas, settings)

    def __serve_build_asgi_app__(self) -> FrontGateway:
        return self._gateway
