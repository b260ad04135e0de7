"""A server with the hub's routes for one repository: ranges, redirects, broken connections, wrong bytes, refusals."""

import hashlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub(ThreadingHTTPServer):
    """The state of a hub: `files` of owner/name, and `asked`, the ranges of the downloads so far."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        self.asked: list[tuple[str, str | None]] = []
        self.tokens: list[str | None] = []
        self.cut_after: int | None = None  # bytes after which a connection is cut off
        self.cuts = 0  # connections that are still to be cut off
        self.goes_on: threading.Event | None = None  # what a download waits for after half of its bytes
        self.resets = False  # True if connections end by a reset, which loses data
        self.refusals: list[int] = []  # statuses of the next downloads, which have no data
        self.ranges = True
        self.broken_from: int | None = None  # the first byte that it cannot send
        self.status = 200
        self.token: str | None = None
        self.content: str | None = None  # the host and port that serve files

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *given: object) -> None:
        """Writes no log."""

    def do_GET(self) -> None:
        hub = self.server
        given = self.headers.get("Authorization")
        if hub.status != 200 or (hub.token and given != f"Bearer {hub.token}"):
            self._answer(hub.status if hub.status != 200 else 401, b"no")
        elif self.path.startswith("/api/models/owner/name/tree/main"):
            listed = [
                {"type": "file", "path": name, "size": 130, "lfs": {"oid": hub.sums[name], "size": len(data)}}
                for name, data in hub.files.items()
            ]
            self._answer(200, json.dumps([*listed, {"type": "directory", "path": "sub", "size": 0}]).encode())
        elif self.path.startswith("/owner/name/resolve/main/") and hub.content:
            self.send_response(302)
            self.send_header("Location", f"{hub.content}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.startswith("/owner/name/resolve/main/"):
            hub.tokens.append(given)
            self._file(hub.files[self.path.removeprefix("/owner/name/resolve/main/")])
        else:
            self._answer(404, b"no such")

    def _file(self, data: bytes) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path.rsplit("/", 1)[1], wanted))
        if self.server.refusals:
            self._answer(self.server.refusals.pop(0), b"later")
            return
        first, last = wanted.removeprefix("bytes=").split("-") if wanted and self.server.ranges else ("0", "")
        start, stop = int(first), int(last) + 1 if last else len(data)
        if self.server.broken_from is not None and start >= self.server.broken_from:
            self._answer(503, b"later")
            return
        if start > len(data) or (start == len(data) and start):
            self._answer(416, b"")
            return
        self.send_response(206 if wanted and self.server.ranges else 200)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.server.goes_on is not None:
            half = start + (stop - start) // 2
            self.wfile.write(data[start:half])
            self.server.goes_on.wait()
            start = half
        cut = self.server.cuts > 0
        self.server.cuts -= cut
        self.wfile.write(data[start : min(stop, start + self.server.cut_after)] if cut else data[start:stop])
        self.close_connection = True
        if cut and self.server.resets:
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Hub]:
    """Runs the server on a thread."""
    hub = Hub(files)
    thread = threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
