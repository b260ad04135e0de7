"""The states of a driver's requests on their way from a store and to it. All of it runs on the driver's thread.

A request waits for its state only so long. Then it begins to compute its prompt beside the fetch, and goes on from
whichever is first: a fetch in vain costs a tenth of what computing takes, and never more.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..engine.cache.prefix_index import TOKEN, key_of
from ..engine.engine import Engine
from ..engine.request import Update
from ..engine.runner import StateArrays
from ..engine.sequence import TokenSequence
from ..errors import BadFile, CacheFull, RwkvGpuError
from .jobs import Job

Found = tuple[Sequence[int], StateArrays]  # the ids of a prefix, and its state
MOST_TURNS = 1024  # that have ended, and may be stored when the process ends


class StateExchange(Protocol):
    """A store of states beyond this process. The driver's thread calls it; none of it waits."""

    def wants(self, missing: int) -> bool:
        """Whether a state may save so many tokens."""

    def patience(self, missing: int) -> float:
        """Seconds after which these tokens are computed although a state is on its way."""

    def fetch(
        self, ids: Sequence[int], known: int, then: Callable[[Found | None], None], wait: Callable[[float], None]
    ) -> None:
        """Looks for a prefix longer than what is known. On another thread `wait` gets a new patience, and `then` it."""

    def pays_to_restore(self, found: Found, missing: int) -> bool:
        """Whether a state that is here is still worth it, with so many tokens of the prompt not computed yet."""

    def restored(self, found: Found, seconds: float, saved: int, *, hedged: bool) -> None:
        """A state came into the engine in so long, and saved so many tokens; `hedged` while these were computed."""

    def keep(self, ids: Sequence[int], state: StateArrays, beginnings: Sequence[int] = ()) -> None:
        """Stores a state, in the background. It is also found as that of beginnings of these lengths."""

    def lacks(self, ids: Sequence[int]) -> bool:
        """Whether a state is not known to be stored."""

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be stored that more would be dropped."""

    def measured(self, tokens: int, seconds: float) -> None:
        """So many tokens of a prompt took so long."""


@dataclass(eq=False)
class Fetch:
    """A state on its way for a request."""

    sequence: TokenSequence
    due: float  # when the request begins without it
    begin: Callable[[], None]
    fail: Callable[[BaseException], None]
    number: int = 0  # of the request, once it has begun


@dataclass(eq=False)
class Turn:
    """A request of a conversation."""

    sequence: TokenSequence
    began: float
    reads: bool = True  # its prompt


class Exchange:
    """Fetches and stores states for the requests of an engine. A request has a `name` before it has a number."""

    def __init__(
        self, engine: Engine, states: StateExchange, put: Callable[[Job], None], clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._states = states
        self._put = put  # gives the driver's thread a job
        self._clock = clock  # stands still while shaders are compiled
        self._turns: dict[int, Turn] = {}  # by number
        self._fetches: dict[object, Fetch] = {}  # by name
        self._ended: deque[tuple[bytes, tuple[int, ...]]] = deque(maxlen=MOST_TURNS)  # ids of turns, and lengths

    # ---------------------------------------------------------------- from the store

    def fetch(
        self, name: object, sequence: TokenSequence, begin: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> bool:
        """Whether a request waits for a state. It begins when that is here, or when it takes too long."""
        begun = sequence.begun
        known = max(0, self._engine.stored(sequence.ids) - begun)
        missing = len(sequence.ids) - begun - known
        if not self._states.wants(missing):
            return False
        fetch = Fetch(sequence, time.monotonic() + self._states.patience(missing), begin, fail)
        self._fetches[name] = fetch

        def wait(seconds: float) -> None:
            fetch.due = time.monotonic() + seconds

        def then(found: Found | None) -> None:
            self._put(Job(lambda: self._arrived(name, found), fail))

        self._states.fetch(tuple(sequence.ids[begun:]), known, then, wait)
        return True

    def began(self, name: object, number: int, sequence: TokenSequence) -> None:
        """A request has begun, with its state or without."""
        self._turns[number] = Turn(sequence, self._clock())
        if name in self._fetches:
            self._fetches[name].number = number

    @property
    def due(self) -> float | None:
        """When the next request begins without its state, by `time.monotonic`."""
        return min((fetch.due for fetch in self._fetches.values() if not fetch.number), default=None)

    def begin_overdue(self) -> None:
        """Begins the requests whose states take too long."""
        if not self._fetches:
            return
        now = time.monotonic()
        for fetch in [one for one in self._fetches.values() if not one.number and one.due <= now]:
            try:
                fetch.begin()
            except Exception as error:  # noqa: BLE001  it ends this request
                fetch.fail(error)

    def _arrived(self, name: object, found: Found | None) -> None:
        """A state is here, or there is none. Its request may be computing by now, or have ended."""
        fetch = self._fetches.get(name)
        if fetch is None:
            return
        number, sequence = fetch.number, fetch.sequence
        computed = sequence.prompt - self._engine.unread(number) if number else self._engine.stored(sequence.ids)
        if found is not None:
            saved = len(found[0]) + sequence.begun - computed
            if saved > 0 and self._states.pays_to_restore(found, saved):
                with suppress(BadFile, CacheFull):  # then it is computed
                    self._restore(found, number, saved)
        del self._fetches[name]
        if not number:
            fetch.begin()

    def _restore(self, found: Found, number: int, saved: int) -> None:
        began = self._clock()
        self._engine.restore(*found)
        if number and self._engine.skip(number):
            self._turns[number].reads = False  # its time says nothing about computing
        self._states.restored(found, self._clock() - began, saved, hedged=number > 0)

    # ---------------------------------------------------------------- to the store

    def follow(self, update: Update) -> None:
        """Measures how fast prompts are computed."""
        turn = self._turns.get(update.id)
        if turn is not None and turn.reads and update.prompt_done == update.prompt_tokens:
            turn.reads = False
            self._states.measured(update.prompt_tokens - update.reused, self._clock() - turn.began)

    def export(self, number: int) -> None:
        """Stores the states of a turn that has ended: of all of it, and of its question."""
        turn = self._turns.pop(number, None)
        if turn is None:
            return
        ids, marks = turn.sequence.ids[turn.sequence.begun :], turn.sequence.request.marks
        lengths = (len(ids), *marks[-1:])
        self._ended.append((key_of(ids), lengths))
        self._keep_all(ids, lengths)

    def push(self, end: float) -> Generator[None, None, None]:
        """Stores all states of conversations that the store lacks, the last used first, until `end`."""
        for key, lengths in reversed(self._ended):
            ids = np.frombuffer(key, f">u{TOKEN}").tolist()
            while self._states.is_full and time.monotonic() < end:
                time.sleep(0.001)  # who pushes has ended its requests
                yield
            if time.monotonic() >= end:
                return
            self._keep_all(ids, [length for length in lengths if self._states.lacks(ids[:length])])
            yield

    def forget(self, name: object, number: int) -> None:
        """A request has ended."""
        self._fetches.pop(name, None)
        self._turns.pop(number, None)

    def _keep_all(self, ids: Sequence[int], lengths: Sequence[int]) -> None:
        """Stores the states of a text at these lengths: one for all of them where a beginning can be cut off it."""
        if self._engine.rewinds and lengths:
            self._keep(ids[: max(lengths)], lengths)
            return
        for length in {*lengths}:
            self._keep(ids[:length])

    def _keep(self, ids: Sequence[int], beginnings: Sequence[int] = ()) -> None:
        with suppress(RwkvGpuError):  # a state that is not stored is computed again
            found = self._engine.export(ids)
            if found is not None and self._states.lacks(ids[: found[0]]):
                shorter = [length for length in beginnings if length < found[0]]
                self._states.keep(tuple(ids[: found[0]]), found[1], shorter)
