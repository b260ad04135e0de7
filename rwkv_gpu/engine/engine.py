"""Many requests at a time through one model: each step mixes prompts and answers of all. Knows token ids only."""

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, BadInput, CacheFull, DeviceLost, RwkvGpuError
from ..ops.batch import Batch
from ..ops.recording import MAX_SEGMENTS
from ..ops.sampling import DRAW
from .pending import Draws, Pending
from .prefixes import Prefixes
from .request import Request, Update
from .runner import Runner, StateArrays
from .scheduler import Share, schedule
from .sequence import Running

VISITOR = -1  # a sequence that is read or written, and never steps


@dataclass(frozen=True)
class Flight:
    """A step that was submitted, and whose its output rows are."""

    pending: Pending
    speaking: Sequence[Running]


class Engine:
    """Continuous batching: requests join and leave between steps. One thread drives it.

    Call `step` for as long as it is `busy`. Up to `look_ahead` steps are submitted before the tokens of the first are
    known, fewer where these keep the runner busy. What goes wrong with one request ends that one, by its last `Update`;
    what goes wrong with a step ends all, and after a loss of the device nothing more can be added.
    """

    def __init__(self, runner: Runner, *, look_ahead: int | None = None) -> None:
        room = runner.room
        self._look_ahead = room.look_ahead if look_ahead is None else look_ahead
        if not 0 <= self._look_ahead <= room.look_ahead:
            raise BadInput(f"look_ahead is {look_ahead}; the model was loaded for 0 to {room.look_ahead}")
        self._runner = runner
        self._places = runner.places
        self.prefixes = Prefixes(self._places, room.cache_bytes, *runner.page_and_state_bytes, room.checkpoints)
        self._ids = itertools.count(1)
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []  # in the order in which they came
        self._flights: deque[Flight] = deque()  # in the order in which they will be done
        self._touched: dict[Running, None] = {}  # who has news
        self._seats = list(range(min(runner.slots, runner.chunk_size, MAX_SEGMENTS)))  # that nobody has
        self._crowded = False  # somebody gave its pages back, so that nobody new may sit until another has ended
        self._evaluating = False  # a text that is given is half read, and holds what it has come to
        self._lost: DeviceLost | None = None

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits, or has news that nobody has seen."""
        return bool(self._waiting or self._running or self._touched)

    def add(self, request: Request) -> int:
        """Takes a request on, or refuses it; gives the number that its news will have."""
        if self._lost is not None:
            raise self._lost
        request.check(self._runner.vocabulary, self._runner.context)
        running = Running(next(self._ids), request, self._runner.vocabulary, self._runner.context)
        self._waiting.append(running)
        return running.id

    def step(self) -> list[Update]:
        """Submits a step, takes what is known of earlier ones, and tells the news of all who took part."""
        try:
            submitted = self._submit()
            waits = any(running.waits for running in self._running)
            ahead = 0 if waits else min(self._look_ahead, self._runner.ahead)
            if not submitted and self._flights:
                self._land()
            while len(self._flights) > ahead:
                self._land()
        except RwkvGpuError as error:
            self._fail(error)
        self._clear()
        told, self._touched = self._touched, {}
        return [running.update() for running in told]

    def abort(self, id: int) -> None:
        """Ends a request; its pages are free at once. Harmless where it has ended."""
        for running in self._find(id):
            running.end("abort")
        self._clear()

    def stop(self, id: int, said: int | None = None) -> None:
        """Ends a request as by a stop id, after the first `said` of its tokens where that is given."""
        for running in self._find(id):
            if said is not None:
                del running.ids[running.prompt + said :]
            running.end("stop")
        self._clear()

    def evaluate(
        self, ids: Sequence[int], *, chunk_size: int | None = None, hidden: bool = False
    ) -> Iterator[npt.NDArray[np.float32]]:
        """The logits of every position, chunk by chunk, [rows, V], or what the head makes them of, [rows, D].

        Others may have steps between two chunks, and give their pages back where there are too few for both. While it
        waits for a seat, or for another such text, it gives no rows. Whoever does not read to the end closes it.
        """
        run = self._runner.hidden if hidden else self._runner.step
        size = min(chunk_size or self._runner.chunk_size, self._runner.chunk_size)
        while self._evaluating or not self._seats:
            yield np.zeros((0, 1), np.float32)
        seat, self._evaluating = self._seats.pop(), True
        try:
            for at in range(0, len(ids), size):
                batch = Batch.of([(seat, at, ids[at : at + size])], every=True)
                while True:
                    try:
                        rows = run(batch)
                        break
                    except CacheFull:
                        if not self._make_room():
                            raise
                yield rows
        finally:
            self._places.forget(seat)
            self._seats.append(seat)
            self._evaluating = self._crowded = False

    def export(self, ids: Sequence[int]) -> tuple[int, StateArrays] | None:
        """What is kept of the longest beginning of a sequence: its length, and its arrays by name."""
        found = self.prefixes.find([*ids, 0])  # the last would be left out
        if found is None:
            return None
        kept, length = found
        self._places.adopt(VISITOR, kept, length)
        try:
            return length, self._runner.read_state(VISITOR)
        finally:
            self._places.forget(VISITOR)

    def restore(self, ids: Sequence[int], arrays: StateArrays) -> None:
        """Keeps what `export` gave for these ids: the next request that begins with them goes on from there."""
        shapes = self._runner.shapes(len(ids))
        if {name: array.shape for name, array in arrays.items()} != shapes:
            raise BadFile(f"the saved state is not one of {len(ids):,} tokens of this model")
        try:
            while True:
                try:
                    self._runner.write_state(VISITOR, len(ids), arrays)
                    break
                except CacheFull:
                    if not self.prefixes.evict():
                        raise
            kept = self._places.keep(VISITOR, len(ids))
            if kept is not None:
                self.prefixes.store(ids, kept, wanted=True)
        finally:
            self._places.forget(VISITOR)

    def close(self) -> None:
        """Ends all requests, untold, and gives back all memory."""
        for running in [*self._waiting, *self._running]:
            running.end("abort")
        self._clear()
        self._touched = {}
        self._flights.clear()
        self._runner.close()

    def _find(self, id: int) -> list[Running]:
        return [running for running in (*self._waiting, *self._running) if running.id == id]

    # ---------------------------------------------------------------- before a step

    def _admit(self) -> None:
        """Seats for those who wait, first come first served; what others left is where they begin."""
        while self._waiting and self._seats and not self._waiting[0].flying and not self._crowded:
            running = self._waiting.popleft()
            running.sit(self._seats.pop(0))
            self._running.append(running)
            if len(running.ids) >= running.most:
                running.end("length")
                self._touched[running] = None
                continue
            if running.request.keep and not self._places.rewinds:
                running.borders = frozenset([*running.request.marks, running.prompt - 1])
            found = self.prefixes.find(running.ids)
            if found is not None:
                kept, running.fed = found
                self._places.adopt(running.seat, kept, running.fed)
            if not running.begun:
                running.begun, running.reused = True, running.fed
            if not running.by_host:
                self._runner.remember(running.seat, running.ids, running.request.params)

    def _place(self) -> tuple[list[Share], Batch]:
        """The rows of the next step, with room for all they write; others give theirs back where there is none."""
        while True:
            self._admit()
            shares = schedule([running for running in self._running if not running.reason], self._runner.chunk_size)
            rows = [(running.seat, start, running.rows(start, end)) for running, start, end, _ in shares]
            batch = Batch.of(rows, wanted=[share.last for share in shares])
            try:
                return shares, self._runner.prepare(batch)
            except CacheFull:
                if not self._make_room():
                    raise

    def _make_room(self) -> bool:
        """Frees pages where a step found too few; false where nobody can do without."""
        if self.prefixes.evict():
            return True
        if len(self._running) < (1 if self._evaluating else 2):
            return False
        self._preempt()
        return True

    def _preempt(self) -> None:
        """The request that came last gives back its pages, to begin again from its tokens when another has ended."""
        running = self._running.pop()
        self._leave(running)
        running.fed = 0
        self._waiting.appendleft(running)
        self._crowded = True

    # ---------------------------------------------------------------- a step

    def _submit(self) -> bool:
        """Sets the next step going; false where nobody has anything to feed."""
        shares, batch = self._place()
        if not shares:
            return False
        speaking = [share.running for share in shares if share.last]
        pending = self._runner.submit(batch, self._draws(speaking))
        for share in shares:
            running = share.running
            running.fed = share.end
            running.flying += share.last
            if share.start < running.prompt:
                self._keep_prompt(running, share.end)
                self._touched[running] = None
        self._flights.append(Flight(pending, speaking))
        return True

    def _draws(self, speaking: Sequence[Running]) -> Draws:
        """How the output rows are drawn from."""
        rows = np.array([running.draw() for running in speaking], DRAW)
        given = {row: mask for row, running in enumerate(speaking) if (mask := running.mask()) is not None}
        masks = None
        if given:
            masks = np.full((len(rows), -(-self._runner.vocabulary // 32)), 0xFFFFFFFF, np.uint32)
            masks[list(given)] = list(given.values())
        return Draws(rows, masks, any(running.by_host for running in speaking))

    def _land(self) -> None:
        """Takes the tokens of the earliest step under way; those past an end are dropped."""
        flight = self._flights.popleft()
        answer = flight.pending.wait()
        for row, running in enumerate(flight.speaking):
            running.flying -= 1
            if running.reason:
                continue
            self._touched[running] = None
            try:
                running.take(running.choose(answer, row))
            except RwkvGpuError as error:
                running.end("error", error)

    # ---------------------------------------------------------------- after a step

    def _keep_prompt(self, running: Running, end: int) -> None:
        """Keeps what a step of a prompt has come to, where another prompt may share it."""
        asked = end in running.borders
        if asked or (self._places.rewinds == (end == running.prompt)):
            self._keep(running, end, asked=asked)

    def _keep(self, running: Running, most: int, *, asked: bool) -> None:
        """Keeps the beginning of a sequence; if nobody asked for it, only what is whole."""
        kept = self._places.keep(running.seat, most, whole=not asked)
        if kept is not None:
            self.prefixes.store(running.ids[: kept.length], kept, wanted=asked)

    def _clear(self) -> None:
        """Those who have ended give back their pages and their seat."""
        ended = [running for running in (*self._waiting, *self._running) if running.reason]
        if not ended:
            return
        self._crowded = False
        self._waiting = deque(running for running in self._waiting if not running.reason)
        self._running = [running for running in self._running if not running.reason]
        for running in ended:
            self._touched[running] = None
            if running.seat < 0:
                continue
            if running.reason == "error":
                self.prefixes.forget(running.ids)
            elif running.request.keep or (self._places.rewinds and running.reason != "abort"):
                self._keep(running, len(running.ids), asked=running.request.keep)
            self._leave(running)

    def _leave(self, running: Running) -> None:
        self._places.forget(running.seat)
        self._seats.append(running.seat)
        running.seat = -1

    def _fail(self, error: RwkvGpuError) -> None:
        """What goes wrong with a whole step ends all that run or wait, and what was kept is not to be trusted."""
        if isinstance(error, DeviceLost):
            self._lost = error
        for running in [*self._waiting, *self._running]:
            running.end("error", error)
        for flight in self._flights if self._lost is None else ():
            with contextlib.suppress(RwkvGpuError):
                flight.pending.wait()
        self._flights.clear()
        self.prefixes.clear()
