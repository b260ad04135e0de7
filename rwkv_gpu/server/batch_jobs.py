"""Runs batches: each line becomes a low-priority request. The number of batches is limited.

Only its owner sees a batch.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from .call import Json, dumps
from .errors import RETRY_AFTER, ApiError
from .stored_files import KEPT, File, StoredFiles

MOST = 256  # maximum number of kept batches of a key
MAX_RUNNING = 16  # maximum number of running batches of a key
MAX_RUNNING_OF_ALL = 64
MAX_OF_ALL = 4096
MAX_LINES = 50_000
WINDOW = 24 * 3600.0  # maximum seconds that a batch takes

Kind = Literal["succeeded", "errored", "canceled", "expired"]


@dataclass(frozen=True)
class Line:
    """A request of a batch."""

    custom_id: str
    body: Json


@dataclass(frozen=True)
class Outcome:
    """How a line ended: its status, and the body of its response."""

    kind: Kind
    status: int = 0
    body: Json = field(default_factory=dict)


@dataclass(eq=False)
class Batch:
    """A batch with the files of its results."""

    id: str
    owner: bytes
    about: Json  # fields of the client's request
    lines: dict[str, Line]  # lines without a result
    write: Callable[["Batch", Line, Outcome], tuple[File, Json] | None]
    files: tuple[File, ...]
    created: float = field(default_factory=time.time)
    counts: Counter[str] = field(default_factory=Counter)
    unrun: Kind = "canceled"  # the outcome of lines that have not run
    cancelled_at: float | None = None
    ended_at: float | None = None
    fault: ApiError | None = None
    task: asyncio.Task[None] | None = None
    total: int = 0


class Batches:
    """All batches of a server. They share a limited number of lines that run at the same time."""

    def __init__(self, files: StoredFiles, places: int) -> None:
        self._files = files
        self._places = asyncio.Semaphore(places)
        self._found: dict[str, Batch] = {}
        self._closed = False

    def start(self, batch: Batch, answer: Callable[[Line], Awaitable[Outcome]]) -> None:
        """Starts a batch."""
        mine = self.listed(batch.owner)
        if self._closed:
            raise ApiError(503, "the server is shutting down", code="shutting_down", retry_after=RETRY_AFTER)
        running = sum(one.ended_at is None for one in self._found.values())
        if sum(one.ended_at is None for one in mine) >= MAX_RUNNING or running >= MAX_RUNNING_OF_ALL:
            raise ApiError(
                429,
                f"{MAX_RUNNING} batches of this key are running, which is the limit; ask again later",
                retry_after=60,
            )
        if len(self._found) >= MAX_OF_ALL:
            raise ApiError(
                429, f"the server stores {MAX_OF_ALL:,} batches, which is the limit; ask again later", retry_after=3600
            )
        if len(mine) >= MOST:
            oldest = next(one for one in reversed(mine) if one.ended_at is not None)
            self.delete(oldest)
        batch.total = len(batch.lines)
        try:
            for file in batch.files:
                self._files.add(file)
        except ApiError:
            self.delete(batch)
            raise
        self._found[batch.id] = batch
        batch.task = asyncio.create_task(self._run(batch, answer))
        expiry = asyncio.get_running_loop().call_later(WINDOW, self.stop, batch, "expired")
        batch.task.add_done_callback(lambda _: expiry.cancel())
        batch.task.add_done_callback(lambda _: self._end(batch))

    def get(self, id: str, owner: bytes, prefix: str) -> Batch:
        """The batch with that id, of the API whose ids have this prefix."""
        found = self._found.get(id) if id.startswith(prefix) else None
        if found is None or found.owner != owner or found.created < time.time() - KEPT:
            raise ApiError(404, f"there is no batch {id[:80]!r} here")
        return found

    def listed(self, owner: bytes, prefix: str = "") -> list[Batch]:
        """The batches of a key, latest first; those whose ids have the prefix."""
        for old in [one for one in self._found.values() if one.created < time.time() - KEPT]:
            self.delete(old)
        return [one for one in reversed(self._found.values()) if one.owner == owner and one.id.startswith(prefix)]

    def stop(self, batch: Batch, why: Kind = "canceled") -> None:
        """Ends a batch: its running lines, and those that have not begun."""
        if batch.ended_at is None and batch.cancelled_at is None and batch.task is not None:
            batch.unrun = why
            batch.cancelled_at = time.time()
            batch.task.cancel()

    def delete(self, batch: Batch) -> None:
        """Removes a batch that has ended."""
        self._found.pop(batch.id, None)
        for file in batch.files:
            if not file.listed:
                self._files.delete(file)

    def close(self) -> None:
        """Ends all batches."""
        self._closed = True
        for batch in self._found.values():
            self.stop(batch)

    async def _run(self, batch: Batch, answer: Callable[[Line], Awaitable[Outcome]]) -> None:
        running: set[asyncio.Task[None]] = set()

        async def one(line: Line) -> None:
            self._ended(batch, line, await answer(line))

        try:
            for line in [*batch.lines.values()]:
                await self._places.acquire()
                if batch.fault is not None:
                    self._places.release()
                    break
                task = asyncio.create_task(one(line))
                running.add(task)
                task.add_done_callback(running.discard)
                task.add_done_callback(lambda _: self._places.release())
            while running:
                await asyncio.wait(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, batch: Batch, line: Line, outcome: Outcome) -> None:
        """Writes the result of a line. The batch fails if there is no room for it."""
        batch.lines.pop(line.custom_id, None)
        batch.counts[outcome.kind] += 1
        written = batch.write(batch, line, outcome)
        if written is None or batch.fault is not None:
            return
        try:
            self._files.append(written[0], dumps(written[1]) + b"\n")
        except ApiError as error:
            batch.fault = error

    def _end(self, batch: Batch) -> None:
        for line in [*batch.lines.values()]:
            self._ended(batch, line, Outcome(batch.unrun))
        batch.ended_at = time.time()
        for file in batch.files:
            file.listed = file.purpose == "batch_output"
            if not file.nbytes:
                self._files.delete(file)
