"""HTTP/1.1 by httptools, with bounds on what comes before a request is there: the size of its head, and time."""

import asyncio
import contextlib
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 << 10  # bytes of the request line and all headers
HEAD_SECONDS = 30.0  # that a client has to send them, and that a new connection may be idle


class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """Closes connections that send endless headers, or none. uvicorn bounds neither."""

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        super().connection_made(transport)
        self._head_bytes = 0
        self._in_body = False
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        if not self._in_body:
            self._head_bytes += len(data)
            if self._timer is None:
                self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)
        super().data_received(data)
        if not self._in_body and self._head_bytes > MAX_HEAD:
            self._refuse()

    def on_headers_complete(self) -> None:
        """The head of a request is there."""
        self._in_body = True
        self._stop_timer()
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD or len(self.url) > MAX_HEAD:
            self._refuse()
            return
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body of a request is there; the next head may follow."""
        self._in_body, self._head_bytes = False, 0
        super().on_message_complete()

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()

    def _too_slow(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def http_server(
    app: Any, root_path: str, ssl_certfile: str | None, ssl_keyfile: str | None, *, date_header: bool = True
) -> uvicorn.Server:
    """uvicorn with these bounds, and nothing that its runner does itself: signals, logs, a life span."""
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=date_header,
        proxy_headers=False,
        root_path=root_path,
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    return server
