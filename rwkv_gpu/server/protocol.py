"""HTTP/1 by httptools, with limits on the size of a request's head and on the time to send it."""

import asyncio
import contextlib
from collections.abc import Callable, MutableMapping
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from . import body

MAX_HEAD = 64 << 10  # bytes of the request line and all headers; also of chunk extensions and trailers
MAX_UNREAD = 16 << 20  # bytes of a body after the response, such as a refusal
PIECE = 16 << 10  # bytes that are parsed before the limits are checked
CHUNK_SIZE = 12  # bytes of a chunk's size and line breaks
HEAD_SECONDS = 30.0  # time to send it, and idle time of a new connection


class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """Closes connections that send endless headers or no headers, neither of which uvicorn limits.

    A request may offer to upgrade to another protocol: Java's client offers HTTP/2. Such a request is answered in
    HTTP/1. Its body is read, which uvicorn would drop. HTTP/1.0 clients get no chunked responses.
    """

    parser: Any

    def connection_made(self, transport: Any) -> None:
        """Handles a new connection."""
        super().connection_made(transport)
        self._head_bytes = 0
        self._in_body = False
        self._body_began = 0.0
        self._body_bytes = 0  # bytes of the body without chunk sizes, extensions and trailers
        self._around_bytes = 0  # bytes of chunk sizes, extensions and trailers, minus what chunks need
        self._chunks = 0  # number of chunks that began in the current piece
        self._body_timer: asyncio.TimerHandle | None = None
        self._reads_on = False  # whether it reads on after a closing response, as the client still sends
        self._cycles: list[Any] = []  # requests without a complete response; several if a client pipelines
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends all requests of the lost connection; uvicorn ends only the last."""
        self._stop_timer()
        self._stop_body_timer()
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handles received bytes, in pieces."""
        self._unset_keepalive_if_required()
        for at in range(0, len(data), PIECE):
            if self.transport.is_closing():
                return
            self._piece_received(data[at : at + PIECE] if len(data) > PIECE else data)
        if self._in_body and self._body_timer is None:
            self._body_timer = self.loop.call_later(body.patience(0), self._body_too_slow)

    def _piece_received(self, data: bytes) -> None:
        in_body, before, self._chunks = self._in_body, self._body_bytes, 0
        if not in_body:
            self._head_bytes += len(data)
            if self._timer is None:
                self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)
        self._read(data)
        if in_body and self._in_body:
            around = len(data) - (self._body_bytes - before) - CHUNK_SIZE * self._chunks
            self._around_bytes = max(0, self._around_bytes + around)
        if (self._around_bytes if self._in_body else self._head_bytes) > MAX_HEAD:
            self._refuse()
        elif self._in_body and self.cycle.response_complete and self._body_bytes > MAX_UNREAD:
            self.transport.close()

    def on_body(self, piece: bytes) -> None:
        """Handles a part of a body."""
        self._body_bytes += len(piece)
        super().on_body(piece)

    def on_chunk_header(self) -> None:
        """Handles the size of a chunk of a body."""
        self._chunks += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """Limits headers, and trailers after a chunked body, which uvicorn accepts in any number."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handles a complete head of a request."""
        if self.parser.should_upgrade():
            return  # the bytes are parsed again without the upgrade offer
        self._in_body = True
        self._body_began, self._body_bytes, self._around_bytes = self.loop.time(), 0, 0
        self._stop_timer()
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD or len(self.url) > MAX_HEAD:
            self._refuse()
            return
        super().on_headers_complete()
        self._cycles = [*(cycle for cycle in self._cycles if not cycle.response_complete), self.cycle]
        self.cycle.transport = _Closing(self)
        if self.scope["http_version"] == "1.0":
            _end_by_closing(self.cycle)

    def on_message_complete(self) -> None:
        """Handles a complete body; the next head may follow."""
        if self.parser.should_upgrade():
            return
        self._in_body, self._head_bytes = False, 0
        self._stop_body_timer()
        if self._reads_on:
            self.transport.close()
            return
        super().on_message_complete()

    def end_response(self) -> None:
        """Closes the connection.

        If the client still sends a body, reads on for a while: otherwise it would lose the response.
        """
        if self._in_body and not self.transport.is_closing() and self.transport.can_write_eof():
            self._reads_on = True
            self.transport.write_eof()
        else:
            self.transport.close()

    def _read(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                if self.parser.get_method() != b"CONNECT":
                    data = self._head_without_offer() + data[offer.args[0] :]
                    continue
                self.send_400_response("This server is not a proxy.")
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
            return

    def _head_without_offer(self) -> bytes:
        """The received head without its Upgrade header, and a new parser for it.

        The old parser considers the request finished.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        lines = [method + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            if not (self._in_body and self.cycle.response_started):
                self.transport.write(
                    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                )
            self.transport.close()

    def _too_slow(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:  # for example a line break after a body
            self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)
        elif not self.transport.is_closing():
            self.transport.close()

    def _body_too_slow(self) -> None:
        """Handles a body that arrives too slowly: sends 408, or closes the connection if the request was already
        refused.
        """
        left = self._body_began + body.patience(self._body_bytes) - self.loop.time()
        if left <= 0 and self.cycle.response_complete:
            self.transport.close()
            return
        self._body_timer = self.loop.call_later(max(left, 0.1 * body.PATIENCE), self._body_too_slow)

    def _stop_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Closing:
    """The transport of a request, which its protocol closes."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self.close = protocol.end_response
        self._transport = protocol.transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _end_by_closing(cycle: Any) -> None:
    """Ends a response without a length by closing its connection."""
    send, endless = cycle.send, False

    async def sending(message: MutableMapping[str, Any]) -> None:
        nonlocal endless
        if message["type"] == "http.response.start":
            endless = all(name.lower() != b"content-length" for name, _ in message["headers"])
            if endless:
                cycle.chunked_encoding = False
        elif endless:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = sending


def call_soon(loop: asyncio.AbstractEventLoop | None, function: Callable[[], object]) -> None:
    """Calls a function in the event loop of a server that serves."""
    assert loop is not None
    with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(function)


def http_server(
    app: Any, root_path: str, ssl_certfile: str | None, ssl_keyfile: str | None, *, date_header: bool = True
) -> uvicorn.Server:
    """Creates a uvicorn server with these limits, without the parts that our runner handles.

    These are signals, logs and the lifespan protocol.
    """
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
        root_path=f"/{root_path.strip('/')}" if root_path.strip("/") else "",
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    return server
