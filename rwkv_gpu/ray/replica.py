"""A replica: the server of `rwkv-gpu serve` on one adapter, without a socket. Ray transfers requests and responses."""

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from ray import serve

from rwkv_gpu.llm.model import LLM
from rwkv_gpu.server.app import create_app
from rwkv_gpu.server.catalogue import LoadFailed, ServedModel
from rwkv_gpu.server.errors import ApiError
from rwkv_gpu.server.logs import start_logs
from rwkv_gpu.server.replicas.affinity import Beginning
from rwkv_gpu.server.replicas.gateway import REPLICA, STREAM_ID, Page
from rwkv_gpu.server.service import Service

from .adapters import claim_of_actor
from .ask import RoutedRequest, stream_beginning
from .routing import BEGINNINGS, SPEED
from .settings import Settings

MAX_REPORTED = 512  # conversations that a replica reports to routers
WAITING = 64  # messages of a response that wait to be fetched
TO_STORE = 8.0  # seconds to write states at the end, within Ray's grace period after draining
PROMPT, ANSWER = 64, 16  # tokens of the turn used to measure speed
Message = dict[str, Any]


class Replica:
    """A server with the methods that Ray calls: answering, health, and its conversations."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Serve awaits it
        start_logs(settings.log_format, sys.stderr)
        self._claim = claim_of_actor(settings.device)
        self._service: Service = settings.setup.service(self._claim.device)
        self._app = create_app(self._service)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._conversations: OrderedDict[Beginning, None] = OrderedDict()
        self._speed = 1.0
        first = self._service.catalogue.first
        if first is not None:
            try:
                llm = await self._service.catalogue.loaded(first)
            except LoadFailed as error:
                raise error.error from None
            self._speed = await asyncio.to_thread(turns_per_second, llm)
        if settings.several_models:
            most = settings.max_models or -1
            self._models = serve.multiplexed(max_num_models_per_replica=most)(loader(self._service))

    async def answer(self, ask: RoutedRequest) -> AsyncGenerator[list[Message]]:
        """Yields the messages of the response, all that are available at a time."""
        if ask.model:
            await self._use(ask.model)
        self._has(ask.beginnings)
        messages: asyncio.Queue[Message | None] = asyncio.Queue(WAITING)
        gone = asyncio.Event()
        work = asyncio.create_task(self._respond(ask, messages, gone))
        try:
            while True:
                batch = [await messages.get()]
                while not messages.empty():
                    batch.append(messages.get_nowait())
                if found := [one for one in batch if one is not None]:
                    yield found
                if batch[-1] is None:
                    break
            await work
        finally:
            gone.set()
            work.cancel()

    async def _respond(
        self, ask: RoutedRequest, messages: "asyncio.Queue[Message | None]", gone: asyncio.Event
    ) -> None:
        body: list[Message] = [{"type": "http.request", "body": ask.body, "more_body": False}]

        async def receive() -> Message:
            if body:
                return body.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._has(stream_beginning(value.decode()) for name, value in message["headers"] if name == STREAM_ID)
                message["headers"] = [*message["headers"], (REPLICA, self._name.encode())]
            await messages.put(message)

        try:
            await self._app(dict(ask.scope), receive, send)
        finally:
            if not gone.is_set():
                await messages.put(None)

    def _has(self, beginnings: Iterable[Beginning]) -> None:
        """Records that it now has a conversation."""
        for one in beginnings:
            self._conversations[one] = None
            self._conversations.move_to_end(one)
        while len(self._conversations) > MAX_REPORTED:
            self._conversations.popitem(last=False)

    # ---------------------------------------------------------------- several models

    async def _use(self, name: str) -> None:
        """Reports to Ray that this model is loaded. Errors are reported by the server."""
        with suppress(ApiError):
            await self._models(self._service.catalogue.find(name).name)

    # ---------------------------------------------------------------- called by Ray

    def record_replica_metadata(self) -> dict[str, Any]:
        """The properties that do not change. Routers divide the load of a replica by its speed."""
        return {SPEED: self._speed, "device": self._claim.device}

    def record_routing_stats(self) -> dict[str, Any]:
        """Reports the conversations whose states this replica has cached."""
        return {BEGINNINGS: list(self._conversations)}

    def check_health(self) -> None:
        """Raises if the first model cannot be loaded any more; Ray then starts another replica."""
        first = self._service.catalogue.first
        if first is not None and first.state == "failed":
            raise RuntimeError(f"the model {first.name} has failed: {first.error}")

    async def page(self, ask: RoutedRequest) -> Page:
        """A complete response, for the pages about all replicas."""
        status, pieces = 500, []
        async for batch in self.answer(ask):
            for message in batch:
                status = message.get("status", status)
                pieces.append(message.get("body", b""))
        return Page(self._name, self._claim.device, status, b"".join(pieces))

    async def __del__(self) -> None:
        """Drains: Ray sends no more requests. Remaining conversation states are written to the store."""
        service: Service | None = getattr(self, "_service", None)
        if service is None:
            return
        service.draining = True
        await service.drained(service.config.drain)
        service.end_all()
        await service.catalogue.store_states(TO_STORE)
        await service.close()
        self._claim.close()


class Loaded:
    """A loaded model, as an object that Ray counts."""

    def __init__(self, service: Service, served: ServedModel) -> None:
        self._service = service
        self._served = served

    async def __del__(self) -> None:
        """Unloads the model, now or when its last request ends."""
        if not await self._service.catalogue.unload(self._served):
            self._served.keep_alive = 0.0


def loader(service: Service) -> Callable[[str], Awaitable[Loaded]]:
    """Returns Ray's loader, which loads missing models; Ray evicts one if there are too many."""

    async def load(name: str) -> Loaded:
        served = service.catalogue.find(name)
        await service.catalogue.loaded(served)
        return Loaded(service, served)

    return load


def turns_per_second(llm: LLM) -> float:
    """Speed of a short turn on an idle replica: the second one, since the first compiles shaders."""
    seconds = 1.0
    for token in (0, 1):
        began = time.perf_counter()
        llm.generate([token] * min(PROMPT, (llm.context or 2 * PROMPT) // 2), max_tokens=ANSWER)
        seconds = time.perf_counter() - began
    return 1 / seconds
