"""Streams that survive a lost connection: the client resumes after the last event that it has received.

A request opts in by `"resumable": true`. Its events are numbered, the last ones stay in memory, and the response header
X-Stream-Id identifies the stream.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from .call import EVENT_STREAM
from .errors import ApiError

MAX_BYTES = 1 << 20  # bytes of events that a stream keeps
MAX_STREAMS = 256
PATIENCE = 60.0  # seconds that a stream continues without a reader; also seconds that it is kept after its end
BREAK = b"\n\n"  # between events
LINE = b"\n"  # between lines of JSON. These have no numbers: clients count lines


@dataclass(eq=False)
class Recording:
    """The last events of a stream, and its readers."""

    owner: bytes  # digest of the key that requested it
    stop: Callable[[], None]  # stops the generation
    media_type: bytes = EVENT_STREAM
    id: str = field(default_factory=lambda: f"strm_{secrets.token_hex(16)}")
    last: int = 0  # number of the last event
    ended: bool = False
    readers: int = 0
    events: deque[tuple[int, bytes]] = field(default_factory=deque, repr=False)
    nbytes: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    timer: asyncio.TimerHandle | None = None

    def add(self, piece: bytes) -> None:
        """Stores events, and wakes readers."""
        are_events = self.media_type == EVENT_STREAM
        for event in piece.split(BREAK if are_events else LINE)[:-1]:
            self.last += 1
            numbered = b"id: %d\n%s\n\n" % (self.last, event) if are_events else event + LINE
            self.events.append((self.last, numbered))
            self.nbytes += len(numbered)
        while self.nbytes > MAX_BYTES:
            self.nbytes -= len(self.events.popleft()[1])
        self._wake_readers()

    def end(self) -> None:
        """Ends the recording."""
        self.ended = True
        self._wake_readers()

    async def read(self, after: int) -> AsyncGenerator[bytes]:
        """Yields the events after number `after`: stored ones, then new ones."""
        while True:
            changed = self.changed
            if self.events and self.events[0][0] > after + 1:
                raise ApiError(
                    410, f"event {after + 1} of this stream is no longer stored; ask again", code="stream_gone"
                )
            # Searched from the end: a reader that keeps up needs only the last ones.
            fresh: list[bytes] = []
            for number, event in reversed(self.events):
                if number <= after:
                    break
                fresh.append(event)
            if fresh:
                after = self.last
                yield b"".join(reversed(fresh))
            elif self.ended:
                return
            else:
                await changed.wait()

    def _wake_readers(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Streams:
    """The resumable streams, by id."""

    def __init__(self) -> None:
        self._recordings: dict[str, Recording] = {}

    def __len__(self) -> int:
        return len(self._recordings)

    def open(self, owner: bytes, stop: Callable[[], None], media_type: bytes = EVENT_STREAM) -> Recording:
        """Opens a recording; if there are too many, it replaces the oldest ended one."""
        if len(self._recordings) >= MAX_STREAMS:
            ended = next((one for one in self._recordings.values() if one.ended), None)
            if ended is None:
                raise ApiError(429, f"{MAX_STREAMS} streams can be resumed at a time; ask again later", retry_after=5)
            self.drop(ended)
        recording = Recording(owner, stop, media_type)
        recording.timer = self._later(recording)
        self._recordings[recording.id] = recording
        return recording

    def find(self, id: str, owner: bytes) -> Recording:
        """Finds a stream by id for its owner; to others it does not exist."""
        recording = self._recordings.get(id)
        if recording is None or not secrets.compare_digest(recording.owner, owner):
            raise ApiError(404, "there is no such stream; it may have ended a while ago", code="stream_not_found")
        return recording

    async def follow(self, recording: Recording, after: int) -> AsyncGenerator[bytes]:
        """Yields the events for one connection. Without any connection, the stream ends after a while."""
        recording.readers += 1
        if recording.timer is not None:
            recording.timer.cancel()
        try:
            async with aclosing(recording.read(after)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            recording.readers -= 1
            if not recording.readers:
                recording.timer = self._later(recording)

    def _later(self, recording: Recording) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(PATIENCE, self.drop, recording)

    def drop(self, recording: Recording) -> None:
        """Removes a stream, and stops its generation."""
        if recording.timer is not None:
            recording.timer.cancel()
        self._recordings.pop(recording.id, None)
        recording.stop()
