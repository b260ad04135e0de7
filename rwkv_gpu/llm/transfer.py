"""Receives a file over connections that may break. The part on disk always holds its first bytes.

With several connections, each fetches a piece of the file into memory. Pieces are appended in order.
"""

import hashlib
import http.client
import re
import threading
import time
import urllib.error
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ..errors import BadInput

TRIES = 5  # number of consecutive connections that may fail to deliver data
PASSING = (408, 429, 500, 502, 503, 504)  # status codes of temporary failures
CHUNK = 1 << 20
PIECE = 32 << 20  # bytes that one of several connections fetches at a time
RANGE = re.compile(r"bytes (\d{1,19})-\d{1,19}/(\d{1,19}|\*)$")
CHECKS = 0.2  # seconds between reports of progress while no piece is complete

Connect = Callable[[int, int | None], Any]  # opens the file at a byte, up to another one or its end
Broken = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


class NoRanges(Exception):
    """The server sends a file only from its beginning. The first argument is its response, if it has begun to send."""


class Part:
    """A growing file, with the SHA-256 of its contents."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.done, self._digest = 0, hashlib.sha256()
        out.seek(0)
        while block := out.read(CHUNK):
            self._count(block)

    def add(self, block: bytes | bytearray) -> None:
        """Appends some bytes."""
        self._out.write(block)
        self._count(block)

    def clear(self) -> None:
        """Empties the part, to start again."""
        self._out.truncate(0)
        self.done, self._digest = 0, hashlib.sha256()

    def close(self) -> str:
        """Flushes buffered bytes; returns the SHA-256."""
        self._out.flush()
        return self._digest.hexdigest()

    def _count(self, block: bytes | bytearray) -> None:
        self._digest.update(block)
        self.done += len(block)


class RateLimit:
    """Limits the bytes per second of all connections together; None is no limit."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due = 0.0
        self._lock = threading.Lock()
        self.block = CHUNK if rate is None else max(1, min(CHUNK, int(rate / 4)))  # bytes to read at once

    def spend(self, nbytes: int) -> None:
        """Waits until `nbytes` more are within the rate."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._due = max(self._due, now) + nbytes / self._rate
            delay = self._due - now
        time.sleep(delay)


@dataclass
class Transfer:
    """A file of `nbytes` that `connect` opens."""

    connect: Connect
    nbytes: int
    pace: RateLimit
    progress: Callable[[int], None]
    connections: int = 1
    has_sum: bool = True  # True if the hub gave a checksum for the whole file
    _tag: str | None = None  # ETag of the last response
    _tags: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def fill(self, part: Part) -> None:
        """Appends to a part until it is complete. Raises the last error if the connections deliver no more bytes."""
        answer = None
        for attempt in range(TRIES):
            try:
                if self.connections > 1 and not attempt:
                    return self._fill_by_pieces(part)
                for block in self._blocks(part.done, None, answer):
                    part.add(block)
                    self.progress(part.done)
                return None
            except NoRanges as refused:
                part.clear()
                [answer] = refused.args
        raise ConnectionError("the connection was cut off")

    def _fill_by_pieces(self, part: Part) -> None:
        """Appends pieces that several connections fetch at the same time."""
        pieces: deque[tuple[bytearray, Future[None]]] = deque()
        start = part.done
        threads = ThreadPoolExecutor(self.connections)
        try:
            while part.done < self.nbytes:
                while start < self.nbytes and len(pieces) < self.connections:
                    piece, stop = bytearray(), min(start + PIECE, self.nbytes)
                    pieces.append((piece, threads.submit(self._fetch, piece, start, stop)))
                    start = stop
                wait([pieces[0][1]], CHECKS)
                if pieces[0][1].done():
                    piece, fetched = pieces.popleft()
                    fetched.result()
                    part.add(piece)
                self.progress(part.done + sum(len(piece) for piece, _ in pieces))
        finally:
            self._stopped.set()
            threads.shutdown(cancel_futures=True)

    def _fetch(self, piece: bytearray, start: int, stop: int) -> None:
        try:
            for block in self._blocks(start, stop):
                piece += block
                if self._stopped.is_set():
                    return
        except NoRanges as refused:  # every other thread would read the file from its beginning, too
            [answer] = refused.args
            if answer is not None:
                answer.close()
            raise NoRanges(None) from None

    def _blocks(self, start: int, stop: int | None, answer: Any = None) -> Iterator[bytes]:
        """Yields a range as it arrives. Reconnects if a connection breaks, as long as connections deliver bytes."""
        end, tries = self.nbytes if stop is None else stop, 0
        while start < end:
            before, failure = start, None
            try:
                answer = self._open(start, stop) if answer is None else answer
                with answer:
                    while block := answer.read1(self.pace.block):  # `read` would lose a block that a reset interrupts
                        self.pace.spend(len(block))
                        start += len(block)
                        if start > end:  # more bytes than announced would fill the disk
                            message = f"the server sends more than the {end - before:,} bytes that it announced"
                            raise BadInput(f"{message}; try again later")
                        yield block
            except Broken as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                    if error.code not in PASSING:
                        raise
                failure = error
            answer = None
            tries = 0 if start > before else tries + 1
            if tries == TRIES:
                raise failure or ConnectionError("the connection was cut off")
            if start < end:
                time.sleep(min(0.1 * 2**tries, 2.0))

    def _open(self, start: int, stop: int | None) -> Any:
        try:
            answer = self.connect(start, stop)
        except urllib.error.HTTPError as error:
            if error.code == 416 and start:  # the part is longer than the file
                error.close()
                raise NoRanges(None) from None
            raise
        if (start or stop is not None) and answer.status != 206:
            raise NoRanges(answer)
        if self._is_another(answer, start, stop):
            answer.close()
            raise NoRanges(None)
        return answer

    def _is_another(self, answer: Any, start: int, stop: int | None) -> bool:
        """True if a response has other bytes than requested: from another offset, or of a file that has changed.

        If the checksum is known, tags are ignored, because several servers may use different tags for one file.
        """
        place = RANGE.match(answer.headers.get("Content-Range") or "")
        if (
            answer.status == 206
            and place
            and (int(place[1]), place[2]) not in ((start, str(self.nbytes)), (start, "*"))
        ):
            return True
        tag = answer.headers.get("ETag")
        with self._tags:
            before, self._tag = self._tag, tag
        continues = start > 0 or stop is not None  # a file may change before it is read again from its beginning
        return not self.has_sum and continues and before is not None and tag != before
