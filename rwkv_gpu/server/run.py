"""Runs the server until a signal ends it: listens, loads the first model, drains, closes."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

from rwkv_gpu.errors import BadInput

from .app import create_app
from .catalogue import LoadFailed
from .protocol import call_soon, http_server
from .service import Service

BACKLOG = 2048  # connections waiting to be accepted
GRACE = 0.5  # seconds from the end of the last request until the process ends
TO_STORE = 0.25  # share of the drain time for writing states, if there is a store
FORCED_EXIT_SECONDS = 1.0  # seconds until the process has ended after a second signal


class Runner:
    """A server with its own event loop. `signal` may be called from any thread."""

    def __init__(self, service: Service, ssl_certfile: str | None = None, ssl_keyfile: str | None = None) -> None:
        self.service = service
        self._server = http_server(create_app(service), service.config.root_path, ssl_certfile, ssl_keyfile)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None

    def run(
        self, listener: socket.socket, on_ready: Callable[[], None] = lambda: None, others: Sequence[socket.socket] = ()
    ) -> None:
        """Serves until ended by a signal, also on other sockets. Raises if the first model could not be loaded."""
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._serve([listener, *others], on_ready))
        if self._failed is not None:
            raise self._failed

    async def _serve(self, listeners: list[socket.socket], on_ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        first = asyncio.create_task(self._load_first(on_ready))
        await self._server.serve(sockets=listeners)
        first.cancel()
        await self.service.close()

    async def _load_first(self, on_ready: Callable[[], None]) -> None:
        catalogue = self.service.catalogue
        try:
            if catalogue.first is not None:
                await catalogue.loaded(catalogue.first)
        except Exception as error:  # noqa: BLE001  raised by `run`
            self._failed = error.error if isinstance(error, LoadFailed) else error
            self._server.should_exit = True
            return
        on_ready()

    def signal(self, number: int = 0) -> None:  # noqa: ARG002
        """The first signal lets running requests end within the drain time; a second one ends them at once."""
        if self._loop is None:
            os._exit(130)
        if self.service.draining:
            threading.Timer(FORCED_EXIT_SECONDS, os._exit, (1,)).start()
            call_soon(self._loop, self._end_at_once)
            return
        self.service.draining = True
        call_soon(self._loop, self._begin_to_end)

    def _begin_to_end(self) -> None:
        self._ending = asyncio.create_task(self._drain())

    def _end_at_once(self) -> None:
        self.service.end_all()
        self._server.should_exit = self._server.force_exit = True

    async def _drain(self) -> None:
        """Lets requests end, and stores the states of all conversations, within the drain time."""
        seconds, began = self.service.config.drain, time.monotonic()
        self.service.batches.close()
        fields = {"requests": self.service.unfinished, "seconds": seconds}
        self.service.log.info("shutting down; a second signal ends all at once", extra={"fields": fields})
        stores = self.service.catalogue.has_store
        await self.service.drained(seconds * (1 - TO_STORE) if stores else seconds)
        self.service.end_all()
        if stores:
            await self.service.catalogue.store_states(began + seconds - time.monotonic())
        self._server.should_exit = True


def listen_on(hosts: str, port: int) -> list[socket.socket]:
    """Opens a listening socket for each of several addresses, separated by commas, on one port."""
    found: list[socket.socket] = []
    several = "," in hosts
    try:
        for host in hosts.split(","):
            found.append(listen(host.strip(), found[0].getsockname()[1] if found else port, only_v6=several))
    except BadInput:
        for listener in found:
            listener.close()
        raise
    return found


def listen(host: str, port: int, *, only_v6: bool = False) -> socket.socket:
    """Opens a listening socket; port 0 chooses a free port. With `only_v6`, an IPv6 address takes no IPv4."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    # On Windows, SO_REUSEADDR would let another server use the same port at the same time.
    option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
    listener.setsockopt(socket.SOL_SOCKET, option, 1)
    if family == socket.AF_INET6 and only_v6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot listen on {host} port {port}: {reason}; choose others by --host and --port") from None
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener
