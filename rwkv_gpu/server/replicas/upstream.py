"""One HTTP request to a replica, whose response is read in pieces."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

import httptools

Headers = list[tuple[bytes, bytes]]
PIECE = 1 << 16  # bytes read at a time
# Headers for a single connection, which are not forwarded.
OF_CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade expect".split()
)
FORWARDED = b"x-forwarded-for"  # the address of the client
ROUTER_KEY = b"x-router-key"  # proves to a replica that the router has set that address


class ReplicaLost(Exception):
    """The replica was lost before its response was complete."""


@dataclass(eq=False)
class Upstream:
    """A response in progress."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    headers: Headers = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    begun: bool = False
    complete: bool = False

    def __post_init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)

    @classmethod
    async def ask(
        cls, port: int, method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> "Upstream":
        """Sends a request and waits for the head of its response."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            raise ReplicaLost(str(error)) from None
        self = cls(reader, writer)
        sent = [(name, value) for name, value in passed_on(headers) if name != b"content-length"]
        sent += [(b"connection", b"close"), (b"content-length", str(len(body)).encode())]
        head = b"".join(b"%s: %s\r\n" % pair for pair in sent)
        try:
            writer.write(b"%s %s HTTP/1.1\r\n%s\r\n" % (method.encode(), target, head) + body)
            while not self.begun:
                await self._read()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        code: int = self._parser.get_status_code()
        return code

    async def body(self) -> AsyncGenerator[bytes]:
        """Yields the pieces of the body as they arrive."""
        while True:
            if self.pieces:
                pieces, self.pieces = self.pieces, []
                yield b"".join(pieces)
            elif self.complete:
                return
            else:
                await self._read()

    def close(self) -> None:
        """Closes the connection; the replica then stops generating."""
        self.writer.close()

    async def _read(self) -> None:
        try:
            data = await self.reader.read(PIECE)
        except OSError as error:
            raise ReplicaLost(str(error)) from None
        if not data:
            raise ReplicaLost("the connection was closed")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise ReplicaLost(f"its response is not valid HTTP: {error}") from None

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handles a header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Handles the end of the head."""
        self.begun = True

    def on_body(self, piece: bytes) -> None:
        """Handles a piece of the body."""
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        """Handles the end of the body."""
        self.complete = True


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that may be forwarded."""
    return [(name, value) for name, value in headers if name.lower() not in OF_CONNECTION]
