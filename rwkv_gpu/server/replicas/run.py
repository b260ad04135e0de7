"""Runs a server of several replicas until a signal ends it."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence

from ..config import ServerConfig
from ..protocol import call_soon, http_server
from .router import Replica, Router
from .supervisor import Supervisor, Target


class ReplicaRunner:
    """The router with its own event loop, and its replicas. `signal` may be called from any thread."""

    def __init__(
        self, config: ServerConfig, devices: Sequence[str], target: Target,
        ssl_certfile: str | None = None, ssl_keyfile: str | None = None,
    ) -> None:  # fmt: skip
        self.replicas = [Replica(number, device) for number, device in enumerate(devices)]
        self.router = Router(self.replicas, config.max_body, config.router_key, config.api_keys)
        self.supervisor = Supervisor(self.replicas, target, on_lost=self._lost, on_change=self._changed)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # uvicorn logs each response that is cut off
        # Replicas add the date header.
        self._server = http_server(self.router, config.root_path, ssl_certfile, ssl_keyfile, date_header=False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_ready: Callable[[], None] = lambda: None
        self._is_ready = threading.Event()

    def run(
        self, listener: socket.socket, on_ready: Callable[[], None] = lambda: None, others: Sequence[socket.socket] = ()
    ) -> None:
        """Serves until ended by a signal. Raises if a replica could not be started."""
        self._on_ready = on_ready
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._serve([listener, *others]))
        if self.supervisor.failed is not None:
            raise self.supervisor.failed

    async def _serve(self, listeners: list[socket.socket]) -> None:
        self._loop = asyncio.get_running_loop()
        self.supervisor.start()
        await self._server.serve(sockets=listeners)

    def signal(self, number: int = 0) -> None:  # noqa: ARG002
        """The first signal lets running requests end within the drain time; a second one ends them at once."""
        if self._loop is None:
            os._exit(130)
        self.supervisor.end()

    def _lost(self, replica: Replica) -> None:
        call_soon(self._loop, lambda: self.router.lost(replica))

    def _changed(self) -> None:
        """Called when a replica is ready, or has ended permanently."""
        if all(one.is_ready for one in self.replicas) and not self._is_ready.is_set():
            self._is_ready.set()
            self._on_ready()
        call_soon(self._loop, self._end_with_the_last)

    def _end_with_the_last(self) -> None:
        if not self.supervisor.is_running:
            self._server.should_exit = True
        elif self.supervisor.is_ending:
            assert self._loop is not None
            self._loop.call_later(0.05, self._end_with_the_last)
