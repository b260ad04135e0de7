"""Fetches and stores the states of a driver's requests. Runs on the driver's thread.

A request waits for its state only for a limited time. Then it computes its prompt in parallel with the fetch, and
continues with the first that is done. So a useless fetch delays a request by at most a tenth of its computing time.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from ..engine.cache.prefix_index import TOKEN, Key
from ..engine.engine import Engine
from ..engine.request import Update
from ..engine.runner import StateArrays
from ..engine.sequence import TokenSequence
from ..errors import BadFile, CacheFull, RwkvGpuError
from .jobs import Job

Found = tuple[Key, StateArrays]  # key of a prefix, and its state
MAX_TURNS = 1024  # ended turns that may be stored when the process ends


class StateExchange(Protocol):
    """An external store of states. Called on the driver's thread; no method blocks."""

    def wants(self, missing: int) -> bool:
        """True if a state that saves `missing` tokens may be worth fetching."""

    def patience(self, missing: int) -> float:
        """Seconds to wait for a state before these tokens are computed in parallel."""

    def fetch(self, text: Key, known: int, then: Callable[[Found | None], None], wait: Callable[[float], None]) -> None:
        """Looks for a prefix longer than `known`.

        On another thread, `wait` gets a new patience, and `then` the result.
        """

    def pays_to_restore(self, found: Found, missing: int) -> bool:
        """True if restoring a fetched state is faster than computing the `missing` tokens of the prompt."""

    def restored(self, found: Found, seconds: float, saved: int, *, hedged: bool) -> None:
        """Records that a state was restored in `seconds` and saved `saved` tokens;

        `hedged` if they were being computed.
        """

    def keep(self, text: Key, state: StateArrays, beginnings: Sequence[int] = ()) -> None:
        """Stores a state in the background. It is also listed for the prefix lengths in `beginnings`."""

    def lacks(self, text: Key) -> bool:
        """True if a state is not known to be stored."""

    @property
    def is_full(self) -> bool:
        """True if the write queue is full: further states would be dropped."""

    def measured(self, tokens: int, seconds: float) -> None:
        """Records that `tokens` prompt tokens were computed in `seconds`."""


@dataclass(eq=False)
class Fetch:
    """A state being fetched for a request."""

    sequence: TokenSequence
    due: float  # when the request begins without it
    begin: Callable[[], None]
    fail: Callable[[BaseException], None]
    number: int = 0  # id of the request, once it has begun


@dataclass(eq=False)
class Turn:
    """A request of a conversation."""

    sequence: TokenSequence
    began: float
    reads: bool = True  # whether it is reading its prompt


class Exchange:
    """Fetches and stores states for the requests of an engine. A request has a `name` before it has an id."""

    def __init__(
        self, engine: Engine, states: StateExchange, put: Callable[[Job], None], clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._states = states
        self._put = put  # queues a job for the driver's thread
        self._clock = clock  # excludes shader compilation
        self._turns: dict[int, Turn] = {}  # by request id
        self._fetches: dict[object, Fetch] = {}  # by name
        # Keys and stored lengths of ended turns
        self._ended: deque[tuple[Key, tuple[int, ...]]] = deque(maxlen=MAX_TURNS)

    # ---------------------------------------------------------------- from the store

    def fetch(
        self, name: object, sequence: TokenSequence, begin: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> bool:
        """Returns True if the request waits for a state. It begins when the state arrives or takes too long."""
        text = _text(sequence)
        known = self._engine.stored(text)
        missing = len(text) // TOKEN - known
        if not self._states.wants(missing):
            return False
        fetch = Fetch(sequence, time.monotonic() + self._states.patience(missing), begin, fail)
        self._fetches[name] = fetch

        def wait(seconds: float) -> None:
            fetch.due = time.monotonic() + seconds

        def then(found: Found | None) -> None:
            self._put(Job(lambda: self._arrived(name, found), fail))

        self._states.fetch(text, known, then, wait)
        return True

    def began(self, name: object, number: int, sequence: TokenSequence) -> None:
        """Records that a request has begun, with or without its state."""
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
            except Exception as error:  # noqa: BLE001  ends this request
                fetch.fail(error)

    def _arrived(self, name: object, found: Found | None) -> None:
        """Handles a fetched state, or none. By then, the request may be computing its prompt, or have ended."""
        fetch = self._fetches.get(name)
        if fetch is None:
            return
        number, sequence = fetch.number, fetch.sequence
        read = sequence.prompt - sequence.begun - self._engine.unread(number)
        if found is not None:
            saved = len(found[0]) // TOKEN - (read if number else self._engine.stored(_text(sequence)))
            if saved > 0 and self._states.pays_to_restore(found, saved):
                with suppress(BadFile, CacheFull):  # otherwise the prompt is computed
                    self._restore(found, number, saved)
        del self._fetches[name]
        if not number:
            fetch.begin()

    def _restore(self, found: Found, number: int, saved: int) -> None:
        began = self._clock()
        self._engine.restore(*found)
        if number and self._engine.skip(number):
            self._turns[number].reads = False  # then its duration does not measure computing speed
        self._states.restored(found, self._clock() - began, saved, hedged=number > 0)

    # ---------------------------------------------------------------- to the store

    def follow(self, update: Update) -> None:
        """Measures how fast prompts are computed."""
        turn = self._turns.get(update.id)
        if turn is not None and turn.reads and update.prompt_done == update.prompt_tokens:
            turn.reads = False
            self._states.measured(update.prompt_tokens - update.reused, self._clock() - turn.began)

    def export(self, number: int) -> None:
        """Stores the states of an ended turn: after the whole turn, and after its question."""
        turn = self._turns.pop(number, None)
        if turn is None:
            return
        text, marks = _text(turn.sequence), turn.sequence.request.marks
        lengths = (len(text) // TOKEN, *marks[-1:])
        self._ended.append((text, lengths))
        self._keep_all(text, lengths)

    def push(self, end: float) -> Generator[None, None, None]:
        """Stores all conversation states that the store lacks, most recently used first, until `end`."""
        for text, lengths in reversed(self._ended):
            while self._states.is_full and time.monotonic() < end:
                time.sleep(0.001)  # the caller has ended its requests
                yield
            if time.monotonic() >= end:
                return
            self._keep_all(text, [length for length in lengths if self._states.lacks(text[: TOKEN * length])])
            yield

    def forget(self, name: object, number: int) -> None:
        """Removes a request that has ended."""
        self._fetches.pop(name, None)
        self._turns.pop(number, None)

    def _keep_all(self, text: Key, lengths: Sequence[int]) -> None:
        """Stores states of a text at these lengths; a single one if shorter prefixes can be cut from it."""
        if self._engine.rewinds and lengths:
            self._keep(text[: TOKEN * max(lengths)], lengths)
            return
        for length in {*lengths}:
            self._keep(text[: TOKEN * length])

    def _keep(self, text: Key, beginnings: Sequence[int] = ()) -> None:
        with suppress(RwkvGpuError):  # a state that is not stored is recomputed later
            found = self._engine.export(text)
            if found is not None and self._states.lacks(text[: TOKEN * found[0]]):
                shorter = [length for length in beginnings if length < found[0]]
                self._states.keep(text[: TOKEN * found[0]], found[1], shorter)


def _text(sequence: TokenSequence) -> Key:
    """The key of all its tokens so far, without the placeholders of an initial state."""
    return sequence.key()[TOKEN * sequence.begun :]
