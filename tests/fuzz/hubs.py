"""A slow hub with failing connections: the first ones have random faults, and later ones work."""

import hashlib
import json
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import strategies as st

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.hub import Hub
from tests.process import PATIENCE

OLD, NEW = (bytes((n * factor) % 251 for n in range(20_000)) for factor in (7, 11))
FAULTS = (
    "none", "cut", "reset", "stall", "longer", "shorter", "other range", "whole", "part of all", "busy", "denied",
    "gone", "no range", "redirect", "loop", "garbage", "chunks", "changed",
)  # fmt: skip
SHORT = 0.05  # seconds without a byte that a download waits here


@dataclass(frozen=True)
class Fault:
    """The fault of one connection, after a share of the requested bytes."""

    kind: str
    where: float


FAULT = st.builds(Fault, st.sampled_from(FAULTS), st.floats(0, 1))
HUBS = st.tuples(st.lists(FAULT, max_size=8), st.booleans(), st.sampled_from([1, 3]))


class Breaking(ThreadingHTTPServer):
    """A hub with one file and faulty connections."""

    daemon_threads = True

    def __init__(self, faults: list[Fault], *, has_sum: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults, self.has_sum = faults, has_sum
        self.data = OLD
        self.over = threading.Event()

    def handle_error(self, *_: object) -> None:
        """Ignores errors of clients that disconnect."""


class Handler(BaseHTTPRequestHandler):
    server: Breaking
    protocol_version = "HTTP/1.1"

    def log_message(self, *given: object) -> None:
        """Writes no log."""

    def do_GET(self) -> None:
        hub = self.server
        self.close_connection = True
        if "/tree/" in self.path:
            about: dict[str, Any] = {"type": "file", "path": "m.gguf", "size": len(hub.data)}
            if hub.has_sum:
                about["lfs"] = {"oid": hashlib.sha256(hub.data).hexdigest(), "size": len(hub.data)}
            self._answer(200, json.dumps([about]).encode())
            return
        fault = hub.faults.pop(0) if hub.faults else Fault("none", 0.0)
        if fault.kind == "changed":
            hub.data = NEW
        self._file(fault, hub.data)

    def _file(self, fault: Fault, data: bytes) -> None:
        given = (self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")
        start, stop = int(given[0]), int(given[1]) + 1 if given[1] else len(data)
        at = start + int(fault.where * (stop - start))
        refusals = {"busy": 503, "denied": 403, "gone": 404, "no range": 416}
        if fault.kind in refusals:
            self._answer(refusals[fault.kind], b"no")
        elif fault.kind in ("redirect", "loop"):
            if fault.kind == "loop":
                self.server.faults[:0] = [fault]
            self._answer(302, b"", Location=self.path)
        elif fault.kind == "garbage":
            self.wfile.write(b"HTTP/7.5 \x1b[2J\xff\r\n\r\n" + data[start:at])
        elif fault.kind == "whole":
            self._answer(200, data)
        elif fault.kind == "other range":
            self._range(data[at : at + stop - start], at, len(data))
        elif fault.kind == "part of all":
            self._range(data[start:stop], start, len(data) + 5)
        else:
            self._broken(fault, data, start, at, stop)

    def _broken(self, fault: Fault, data: bytes, start: int, at: int, stop: int) -> None:
        """Sends a response that ends early, late or never."""
        self.send_response(206 if self.headers.get("Range") else 200)
        self.send_header("ETag", hashlib.sha256(data).hexdigest()[:8])
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        if fault.kind == "chunks":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            more = {"longer": 9, "shorter": start - at}.get(fault.kind, 0)
            self.send_header("Content-Length", str(stop - start + more))
        self.end_headers()
        if fault.kind in ("cut", "reset", "stall"):
            self.wfile.write(data[start:at])
        elif fault.kind == "chunks":
            self.wfile.write(b"%x\r\n" % (stop - start) + data[start:at])
        else:
            self.wfile.write(data[start:stop] + b"and more" * (fault.kind == "longer"))
        if fault.kind == "stall":
            self.wfile.flush()
            self.server.over.wait()
        if fault.kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def _range(self, data: bytes, start: int, total: int) -> None:
        self._answer(206, data, **{"Content-Range": f"bytes {start}-{start + len(data) - 1}/{total}"})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def breaking(faults: list[Fault], *, has_sum: bool) -> Iterator[Breaking]:
    hub = Breaking(faults, has_sum=has_sum)
    thread = threading.Thread(target=hub.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.over.set()
        hub.shutdown()
        hub.server_close()
        thread.join()


def check_hub(given: tuple[list[Fault], bool, int]) -> None:
    """Checks that a file is complete, or refused in one line and absent; a later download must succeed."""
    faults, has_sum, connections = given
    with (
        tempfile.TemporaryDirectory() as folder,
        breaking([*faults], has_sum=has_sum) as server,
        patch("rwkv_gpu.llm.transfer.time.sleep"),
        patch("rwkv_gpu.llm.transfer.PIECE", 6000),
        patch("rwkv_gpu.llm.repository.PIECE", 6000),
    ):
        hub = Hub(folder=Path(folder), endpoint=f"http://127.0.0.1:{server.server_port}", connections=connections)
        for seconds in (SHORT, PATIENCE):
            refused = ""
            try:
                with patch("rwkv_gpu.llm.repository.PATIENCE", seconds):
                    found = hub.pull("hf.co/owner/name").read_bytes()
                break
            except BadInput as error:
                refused = str(error)
            assert refused.isprintable() and 0 < len(refused) < 1000, refused
            assert not [*Path(folder).rglob("m.gguf")]
            server.faults.clear()
        else:
            pytest.fail(f"the file did not come from a hub that answers as it should: {refused}")
        assert found in (OLD, NEW)
