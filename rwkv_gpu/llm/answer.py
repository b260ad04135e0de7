"""An answer on its way from the engine to whoever reads it: updates become events. Runs on the driver's thread."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..engine.request import Update
from ..engine.sampling import Sampled
from ..text.thinking import Part
from .completion import Event, Reason, Stats
from .reader import Reader


@dataclass(frozen=True, slots=True)
class Fed:
    """How much of the prompt was fed so far."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class End:
    """Nothing more comes."""

    reason: Reason
    error: BaseException | None = None


Item = Event | Fed | End


class Answer:
    """Hears of one request, and puts what its reader should know where that one waits."""

    def __init__(
        self,
        reader: Reader,
        prompt_tokens: int,
        put: Callable[[Item], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._reader = reader
        self._put = put
        self._said = 0
        self._fed = -1
        self._prompt_tokens = prompt_tokens
        self._reused = 0
        self._clock = clock
        self._began = clock()
        self._prompted: float | None = None
        self._ended: float | None = None

    def hear(self, update: Update) -> int | None:
        """Takes the news; gives how many tokens were said where a stop string was met."""
        self._reused = update.reused
        if update.prompt_done != self._fed:
            self._fed = update.prompt_done
            self._put(Fed(update.prompt_done, update.prompt_tokens))
        for left, said in zip(range(len(update.sampled) - 1, -1, -1), update.sampled, strict=True):
            self._say(said, last=not left and update.finish_reason == "stop")
            if self._reader.stopped is not None:
                self._finish(End("stop"))
                return self._said
        if update.error is not None:
            self.fail(update.error)
        elif update.finish_reason is not None:
            for part in self._reader.flush():
                self._put(Event(part.text, None, 0.0, (), part.thinking))
            self._finish(End(_REASONS[update.finish_reason]))
        return None

    def fail(self, error: BaseException) -> None:
        """It ends with an error."""
        self._finish(End("error", error))

    def stats(self, new_tokens: int) -> Stats:
        """What it took so far. Any thread may ask."""
        now = self._ended or self._clock()
        prompted = self._prompted or now
        return Stats(self._prompt_tokens, self._reused, new_tokens, prompted - self._began, now - prompted)

    def _say(self, said: Sampled, last: bool) -> None:
        if self._prompted is None:
            self._prompted = self._clock()
        self._said += 1
        first, *more = self._reader.feed(said.token, last) or [Part("", self._reader.thinking)]
        self._put(Event(first.text, said.token, said.logprob, said.top, first.thinking))
        for part in more:
            self._put(Event(part.text, None, 0.0, (), part.thinking))

    def _finish(self, end: End) -> None:
        self._ended = self._clock()
        self._put(end)


_REASONS: dict[str, Reason] = {"stop": "stop", "length": "length", "abort": "abort"}
