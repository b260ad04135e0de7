"""An answer for its reader: events to iterate over, in plain Python or asyncio, and the result."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, Self

from ..engine.request import Request
from .answer import MAX_UNREAD, Answer, End, Item, PromptProgress
from .completion import Completion, Event, Reason, Stats, shorten
from .driver import Driver, wait
from .reader import Reader
from .validate import called

OnPrompt = Callable[[int, int], None]  # prompt tokens fed, and total


class Reading:
    """Base of both readers: the events read so far, and how the answer ended.

    If it is closed early, only what was read belongs to the answer; the rest is dropped.
    """

    def __init__(
        self,
        driver: Driver,
        request: Request,
        reader: Reader,
        put: Callable[[Item], None],
        *,
        on_prompt: OnPrompt | None = None,
        on_end: Callable[[Completion], None] | None = None,
        owner: object = None,
        max_unread: int | None = MAX_UNREAD,
        wake: bool = True,
    ) -> None:
        called("on_prompt", on_prompt)
        self._driver = driver
        self._on_prompt = on_prompt
        self._on_end = on_end
        self._owner = owner  # must not be garbage-collected before this object
        self.events: list[Event] = []  # events that were read
        self._reason: Reason = "running"
        self._ending = threading.Lock()
        self._schema, self._prompt = reader.schema, reader.prompt
        self._silent = request.params.max_tokens == 0
        if self._silent:  # the prompt is still computed, for later requests that begin with it
            request = replace(request, params=replace(request.params, max_tokens=1))
        self._put = put  # used by the driver, which must not refer to this object, so that it can be garbage-collected
        answer = Answer(reader, len(request.ids), put, driver.clock, max_unread)
        driver.submit(request, answer, wake=wake)
        self._answer = answer

    @property
    def completion(self) -> Completion:
        """The answer as far as it was read; after the last event, the whole answer."""
        tokens = tuple(event.token for event in self.events if event.token is not None)
        text, reasoning = ("".join(e.text for e in self.events if e.thinking is thinking) for thinking in (False, True))
        return Completion(text, tokens, self._reason, self.stats, reasoning.strip(), self._schema, self._prompt)

    @property
    def stats(self) -> Stats:
        """Counts and durations so far."""
        return self._answer.stats(sum(event.token is not None for event in self.events))

    def __repr__(self) -> str:
        """The state of the generation."""
        done = self.completion
        return f"<{type(self).__name__} {done.finish_reason}: {len(done.tokens)} tokens, {shorten(done.text)}>"

    def close(self) -> None:
        """Cancels the rest of the answer; has no effect after its end. Any thread may call it."""
        if self._end(End("abort")):
            self._driver.cancel(self._answer, len(self.completion.tokens))
            self._put(End("abort"))  # for a reader that waits in another thread

    def __del__(self) -> None:
        if hasattr(self, "_answer"):
            self.close()

    def _take(self, item: Item) -> Event | None:
        """Records an item; returns it if it is an event."""
        if self._answer.taken():
            self._driver.resume(self._answer)
        if isinstance(item, Event) and self._silent:
            return None
        if isinstance(item, Event):
            self.events.append(item)
            return item
        if isinstance(item, PromptProgress):
            if self._on_prompt is not None:
                self._on_prompt(item.done, item.total)
            return None
        self._end(item)
        self._put(item)  # so that other readers of the same answer end, too
        if item.error is not None:
            raise item.error
        return None

    def _end(self, end: End) -> bool:
        """Ends the answer. Returns False if it has ended before."""
        with self._ending:
            if self._reason != "running":
                return False
            self._reason = "length" if self._silent and end.reason == "stop" else end.reason
        if self._on_end is not None:
            self._on_end(self.completion)
        return True


class Generation(Reading):
    """A running answer: iterate over its events, then look at `completion`. Leaving a `with` early cancels it."""

    def __init__(self, driver: Driver, request: Request, reader: Reader, **more: Any) -> None:
        self._items: SimpleQueue[Item] = SimpleQueue()
        super().__init__(driver, request, reader, self._items.put, **more)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while self._reason == "running":
            try:
                self._driver.check_process()
                event = self._take(wait(self._items))
            except BaseException:
                self.close()
                raise
            if event is not None:
                return event
        raise StopIteration

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yields the events in asyncio; a thread waits for them. `AsyncGeneration` needs no thread."""
        import asyncio

        try:
            while (event := await asyncio.to_thread(next, self, None)) is not None:
                yield event
        finally:
            self.close()

    def wait(self) -> Completion:
        """Reads to the end."""
        for _ in self:
            pass
        return self.completion

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGeneration(Reading):
    """Like `Generation`, for asyncio: `async for event in generation`. Cancelling its reader cancels it, too."""

    def __init__(self, driver: Driver, request: Request, reader: Reader, **more: Any) -> None:
        import asyncio  # also imports TLS, which most programs do not need

        items: asyncio.Queue[Item] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(item: Item) -> None:
            with suppress(RuntimeError):  # the loop is closed: there is no reader left
                loop.call_soon_threadsafe(items.put_nowait, item)

        self._items = items
        super().__init__(driver, request, reader, put, **more)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while self._reason == "running":
            try:
                self._driver.check_process()
                event = self._take(await self._items.get())
            except BaseException:
                self.close()
                raise
            if event is not None:
                return event
        raise StopAsyncIteration

    async def wait(self) -> Completion:
        """Reads to the end."""
        async for _ in self:
            pass
        return self.completion

    async def aclose(self) -> None:
        """Cancels the rest of the answer."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def waits(reading: type[Reading]) -> bool:
    """True if this kind of reader may block; an event loop must not."""
    return not issubclass(reading, AsyncGeneration)
