"""The answers to one request, read in an event loop. Their tokens come from the engine's thread."""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from rwkv_gpu.engine.request import Request
from rwkv_gpu.llm.answer import End, Item, PromptProgress
from rwkv_gpu.llm.completion import Completion, Event
from rwkv_gpu.llm.driver import Driver
from rwkv_gpu.llm.generation import Reading
from rwkv_gpu.llm.reader import Reader

Updates = list[tuple[int, Event | PromptProgress]]  # index of an answer, and an event of it


class Inbox:
    """Passes items from other threads to an event loop, with one wake-up for many items.

    A step produces a token for every stream; a wake-up for each would cost more than the token.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[Answers, int, Item]] = deque()
        self._woken = False

    def put(self, answers: "Answers", index: int, item: Item) -> None:
        """Queues an item. Any thread may call it."""
        self._items.append((answers, index, item))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: there is no reader left
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # cleared first, so that later items wake the loop again
        while self._items:
            answers, index, item = self._items.popleft()
            answers.arrive(index, item)


class Answers:
    """The n answers to one request. `next` returns the events of all of them in order of arrival.

    An event counts as read when `next` returns it, so that the engine pauses a request whose client reads too slowly.
    With `progress`, it also returns how much of the prompt is read.
    """

    def __init__(self, inbox: Inbox, *, progress: bool = False) -> None:
        self._inbox = inbox
        self._progress = progress
        self._arrived: list[tuple[int, Item]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._reading: set[int] = set()  # answers whose progress was reported
        self.each: list[Answer] = []
        self.running = 0  # number of answers that have not ended

    def read(self, driver: Driver, request: Request, reader: Reader, **more: Any) -> "Answer":
        """Requests one more answer."""
        put = partial(self._inbox.put, self, len(self.each))
        answer = Answer(driver, request, reader, put, **more)
        self.each.append(answer)
        self.running += 1
        if self._closed:  # another thread has closed it meanwhile
            answer.close()
        return answer

    def arrive(self, index: int, item: Item) -> None:
        """Handles an item in the loop."""
        self._arrived.append((index, item))
        self._wake()

    async def next(self) -> Updates:
        """Returns the events since the last call; waits for the first. Empty after the end of all answers."""
        while True:
            while not self._arrived and not self.ended:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            arrived, self._arrived = self._arrived, []
            updates: Updates = []
            for index, item in arrived:
                event = self.each[index].take(item)
                if event is not None:
                    updates.append((index, event))
                elif isinstance(item, End):
                    self.running = sum(answer.running for answer in self.each)
                elif self._progress and isinstance(item, PromptProgress):
                    reused = self.each[index].completion.stats.reused_tokens
                    first = index not in self._reading and reused < item.done  # reported once, as in llama-server
                    updates += [(index, replace(item, done=reused))] * first + [(index, item)]
                    self._reading.add(index)
            if updates or self.ended:
                return updates

    @property
    def ended(self) -> bool:
        """True if all answers have ended."""
        return self._closed or not self.running

    @property
    def completions(self) -> list[Completion]:
        """The answers as far as they were read."""
        return [answer.completion for answer in self.each]

    def close(self) -> None:
        """Cancels running answers; the engine frees their memory before its next step."""
        self._closed = True
        for answer in [*self.each]:
            answer.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Answer(Reading):
    """One answer, whose items are taken as they arrive."""

    @property
    def running(self) -> bool:
        """True if more items may follow."""
        return self._reason == "running"

    def take(self, item: Item) -> Event | None:
        """Returns an event, or None for other items. Raises the error that ended the answer."""
        return self._take(item) if self.running else None
