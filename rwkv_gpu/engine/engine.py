"""Many requests at a time through one model: each step mixes prompts and answers of all. Knows token ids only."""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import DeviceLost, RwkvGpuError
from ..ops.batch import Batch
from ..ops.recording import MAX_SEGMENTS
from .request import Request, Update, allowed
from .runner import Runner
from .scheduler import Share, schedule
from .sequence import Running


class Engine:
    """Continuous batching: requests join and leave between steps. One thread drives it.

    Call `step` for as long as it is `busy`. What goes wrong with one request ends that one, by its last `Update`; what
    goes wrong with the device ends all, and after a loss of the device nothing more can be added.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._ids = itertools.count(1)
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []  # in the order in which they came
        self._ended: list[Running] = []  # that are yet to be told of
        self._seats = list(range(min(runner.slots, runner.chunk_size, MAX_SEGMENTS)))  # that nobody has
        self._lost: DeviceLost | None = None

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits, or has news that nobody has seen."""
        return bool(self._waiting or self._running or self._ended)

    def add(self, request: Request) -> int:
        """Takes a request on, or refuses it; gives the number that its news will have."""
        if self._lost is not None:
            raise self._lost
        request.check(self._runner.vocabulary, self._runner.context)
        running = Running(next(self._ids), request, self._runner.vocabulary, self._runner.context)
        self._waiting.append(running)
        return running.id

    def step(self) -> list[Update]:
        """One step of the model over whoever has something to feed, and the news of all who took part."""
        self._admit()
        shares = schedule(self._running, self._runner.chunk_size)
        told = dict.fromkeys(share.running for share in shares)
        try:
            if shares:
                self._run(shares)
        except RwkvGpuError as error:
            self._fail(error)
        self._clear()
        told.update(dict.fromkeys(self._ended))
        self._ended = []
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
                running.fed = min(running.fed, len(running.ids))
            running.end("stop")
        self._clear()

    def evaluate(
        self, ids: Sequence[int], *, chunk_size: int | None = None, hidden: bool = False
    ) -> Iterator[npt.NDArray[np.float32]]:
        """The logits of every position, chunk by chunk, [rows, V], or what the head makes them of, [rows, D].

        Others may have steps between two chunks. While it waits for a seat it gives no rows. Whoever does not read to
        the end closes it.
        """
        run = self._runner.hidden if hidden else self._runner.step
        size = min(chunk_size or self._runner.chunk_size, self._runner.chunk_size)
        while not self._seats:
            yield np.zeros((0, 1), np.float32)
        seat = self._seats.pop()
        try:
            for at in range(0, len(ids), size):
                yield run(Batch.of([(seat, at, ids[at : at + size])], every=True))
        finally:
            self._runner.places.forget(seat)
            self._seats.append(seat)

    def close(self) -> None:
        """Ends all requests, untold, and gives back all memory."""
        for running in [*self._waiting, *self._running]:
            running.end("abort")
        self._clear()
        self._ended = []
        self._runner.close()

    def _find(self, id: int) -> list[Running]:
        return [running for running in (*self._waiting, *self._running) if running.id == id]

    def _admit(self) -> None:
        """Seats for those who wait, first come first served."""
        while self._waiting and self._seats:
            running = self._waiting.popleft()
            running.seat = self._seats.pop(0)
            self._running.append(running)
            if running.prompt >= running.most:
                running.end("length")

    def _run(self, shares: Sequence[Share]) -> None:
        """A step, and the next token of each whose known ones are all fed."""
        rows = [
            (share.running.seat or 0, share.start, share.running.ids[share.start :][: share.count]) for share in shares
        ]
        speaking = [share for share in shares if share.last]
        batch = Batch.of(rows, wanted=[share.last for share in shares])
        logits = self._runner.step(batch)
        for share in shares:
            share.running.fed += share.count
        for share, row in zip(speaking, logits, strict=True):
            try:
                share.running.take(share.running.sampler.sample(self._masked(share.running, row)))
            except RwkvGpuError as error:
                share.running.end("error", error)

    def _masked(self, running: Running, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        grammar = running.request.grammar
        if grammar is None:
            return logits
        return np.where(allowed(grammar.mask(), len(logits)), logits, np.float32(-np.inf))

    def _clear(self) -> None:
        """Those who have ended give back their pages and their seat."""
        ended = [running for running in (*self._waiting, *self._running) if running.reason]
        if not ended:
            return
        self._waiting = deque(running for running in self._waiting if not running.reason)
        self._running = [running for running in self._running if not running.reason]
        for running in ended:
            if running.seat is not None:
                self._runner.places.forget(running.seat)
                self._seats.append(running.seat)
        self._ended += ended

    def _fail(self, error: RwkvGpuError) -> None:
        """What goes wrong with a whole step ends all that took part or wait."""
        if isinstance(error, DeviceLost):
            self._lost = error
        for running in [*self._waiting, *self._running]:
            running.end("error", error)
