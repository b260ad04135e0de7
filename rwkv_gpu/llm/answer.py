"""Converts engine updates to events for the reader of an answer. Runs on the driver's thread."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..engine.request import Update
from ..engine.sampling import Sampled
from ..text.thinking import Part
from .completion import Event, Reason, Stats
from .reader import Reader


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Number of prompt tokens fed so far."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class End:
    """The end of an answer."""

    reason: Reason
    error: BaseException | None = None


MAX_UNREAD = 4096  # unread events at which the request pauses
Item = Event | PromptProgress | End


class Answer:
    """Listens to one request, and passes its events to the reader.

    With more than `max_unread` unread events, the request pauses until half of them are read; None never pauses.
    """

    def __init__(
        self,
        reader: Reader,
        prompt_tokens: int,
        put: Callable[[Item], None],
        clock: Callable[[], float] = time.perf_counter,
        max_unread: int | None = MAX_UNREAD,
    ) -> None:
        self._max_unread = max_unread
        self._counting = threading.Lock()
        self._unread = 0  # number of events
        self._paused = False
        self._reader = reader
        self._to_reader = put
        self._tokens = 0
        self._fed = -1
        self._prompt_tokens = prompt_tokens
        self._reused = 0
        self._drafts: tuple[int, int, float | None] = 0, 0, None  # drafted, accepted, and the gain
        self._clock = clock
        self._began = clock()
        self._prompted: float | None = None
        self._ended: float | None = None

    def on_update(self, update: Update) -> int | None:
        """Handles an update. Returns the number of tokens to keep if a stop string was found."""
        self._reused = update.reused
        self._drafts = update.drafted, update.accepted, update.gain
        if update.prompt_done != self._fed:
            self._fed = update.prompt_done
            self._put(PromptProgress(update.prompt_done, update.prompt_tokens))
        for left, sampled in zip(range(len(update.sampled) - 1, -1, -1), update.sampled, strict=True):
            self._token(sampled, last=not left and update.finish_reason == "stop")
            if self._reader.stopped is not None:
                self._finish(End("stop"))
                return self._tokens
        if update.error is not None:
            self.fail(update.error)
        elif update.finish_reason is not None:
            for part in self._reader.flush():
                self._put(Event(part.text, None, 0.0, (), part.thinking))
            self._finish(End(_REASONS[update.finish_reason]))
        return None

    def overflows(self) -> bool:
        """Returns True once if the reader is so far behind that the request must pause.

        `taken` reports when to resume.
        """
        if self._max_unread is None or self._unread <= self._max_unread:
            return False
        with self._counting:
            paused, self._paused = self._paused, True
        return not paused

    def taken(self) -> bool:
        """Records that an event was read, on any thread. Returns True if the request must resume now."""
        with self._counting:
            self._unread -= 1
            if not self._paused or self._max_unread is None or self._unread > self._max_unread // 2:
                return False
            self._paused = False
            return True

    def _put(self, item: Item) -> None:
        with self._counting:
            self._unread += 1
        self._to_reader(item)

    def fail(self, error: BaseException) -> None:
        """Ends the answer with an error."""
        self._finish(End("error", error))

    def stats(self, new_tokens: int) -> Stats:
        """Statistics so far. Any thread may call it."""
        now = self._ended or self._clock()
        prompted = self._prompted or now
        seconds = prompted - self._began, now - prompted
        drafted, accepted, gain = self._drafts
        return Stats(self._prompt_tokens, self._reused, new_tokens, *seconds, drafted, accepted, gain)

    def _token(self, sampled: Sampled, last: bool) -> None:
        if self._prompted is None:
            self._prompted = self._clock()
        self._tokens += 1
        first, *more = self._reader.feed(sampled.token, last) or [Part("", self._reader.thinking)]
        self._put(Event(first.text, sampled.token, sampled.logprob, sampled.top, first.thinking))
        for part in more:
            self._put(Event(part.text, None, 0.0, (), part.thinking))

    def _finish(self, end: End) -> None:
        self._ended = self._clock()
        self._put(end)


_REASONS: dict[str, Reason] = {"stop": "stop", "length": "length", "abort": "abort"}
