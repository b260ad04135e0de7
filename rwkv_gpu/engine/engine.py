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
from .cache.prefixes import PrefixCache
from .request import Request, Update
from .runner import Runner, StateArrays
from .scheduler import ScheduledChunk, schedule
from .sequence import TokenSequence
from .step_result import PendingStep, SamplingInputs

SCRATCH_SLOT = -1  # a sequence that is read or written, and never steps


@dataclass(frozen=True)
class InFlightStep:
    """A step that was submitted, and whose its output rows are."""

    pending: PendingStep
    sampling: Sequence[TokenSequence]


class Engine:
    """Continuous batching: requests join and leave between steps. One thread drives it.

    Call `step` for as long as it is `busy`. Up to `look_ahead` steps are submitted before the tokens of the first are
    known, fewer where these keep the runner busy. What goes wrong with one request ends that one, by its last `Update`;
    what goes wrong with a step ends all, and after a loss of the device nothing more can be added.
    """

    def __init__(self, runner: Runner, *, look_ahead: int | None = None) -> None:
        config = runner.cache_config
        self._look_ahead = config.look_ahead if look_ahead is None else look_ahead
        if not 0 <= self._look_ahead <= config.look_ahead:
            raise BadInput(f"look_ahead is {look_ahead}; the model was loaded for 0 to {config.look_ahead}")
        self._runner = runner
        self._store = runner.store
        self.prefixes = PrefixCache(self._store, config.cache_bytes, *runner.page_and_state_bytes, config.checkpoints)
        self._ids = itertools.count(1)
        self._waiting: deque[TokenSequence] = deque()
        self._running: list[TokenSequence] = []  # in the order in which they came
        self._in_flight: deque[InFlightStep] = deque()  # in the order in which they will be done
        self._updated: dict[TokenSequence, None] = {}  # who has news
        self._free_slots = list(range(min(runner.slots, runner.chunk_size, MAX_SEGMENTS)))  # that nobody has
        self._preempted = False  # somebody gave its pages back, so that nobody new may sit until another has ended
        self._evaluating = False  # a text that is given is half read, and holds what it has come to
        self._lost: DeviceLost | None = None

    @property
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans and compiling their shaders."""
        return self._runner.compile_seconds

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits, or has news that nobody has seen."""
        return bool(self._waiting or self._running or self._updated)

    def add(self, request: Request) -> int:
        """Takes a request on, or refuses it; gives the number that its news will have."""
        if self._lost is not None:
            raise self._lost
        request.check(self._runner.vocabulary, self._runner.context)
        sequence = TokenSequence(next(self._ids), request, self._runner.vocabulary, self._runner.context)
        self._waiting.append(sequence)
        return sequence.id

    def step(self) -> list[Update]:
        """Submits a step, takes what is known of earlier ones, and tells the news of all who took part."""
        try:
            submitted = self._submit()
            waits = any(sequence.synchronous for sequence in self._running)
            ahead = 0 if waits else min(self._look_ahead, self._runner.ahead)
            if not submitted and self._in_flight:
                self._collect()
            while len(self._in_flight) > ahead:
                self._collect()
        except RwkvGpuError as error:
            self._fail(error)
        self._release_finished()
        told, self._updated = self._updated, {}
        return [sequence.update() for sequence in told]

    def abort(self, id: int) -> None:
        """Ends a request; its pages are free at once. Harmless where it has ended."""
        for sequence in self._find(id):
            sequence.end("abort")
        self._release_finished()

    def stop(self, id: int, said: int | None = None) -> None:
        """Ends a request as by a stop id, after the first `said` of its tokens where that is given."""
        for sequence in self._find(id):
            if said is not None:
                del sequence.ids[sequence.prompt + said :]
            sequence.end("stop")
        self._release_finished()

    def evaluate(
        self, ids: Sequence[int], *, chunk_size: int | None = None, hidden: bool = False
    ) -> Iterator[npt.NDArray[np.float32]]:
        """The logits of every position, chunk by chunk, [rows, V], or what the head makes them of, [rows, D].

        Others may have steps between two chunks, and give their pages back where there are too few for both. While it
        waits for a slot, or for another such text, it gives no rows. Whoever does not read to the end closes it.
        """
        run = self._runner.hidden if hidden else self._runner.step
        size = min(chunk_size or self._runner.chunk_size, self._runner.chunk_size)
        while self._evaluating or not self._free_slots:
            yield np.zeros((0, 1), np.float32)
        slot, self._evaluating = self._free_slots.pop(), True
        try:
            for at in range(0, len(ids), size):
                batch = Batch.of([(slot, at, ids[at : at + size])], every=True)
                while True:
                    try:
                        rows = run(batch)
                        break
                    except CacheFull:
                        if not self._make_room():
                            raise
                yield rows
        finally:
            self._store.forget(slot)
            self._free_slots.append(slot)
            self._evaluating = self._preempted = False

    def export(self, ids: Sequence[int]) -> tuple[int, StateArrays] | None:
        """What is kept of the longest beginning of a sequence: its length, and its arrays by name."""
        found = self.prefixes.find([*ids, 0])  # the last would be left out
        if found is None:
            return None
        handle, length = found
        self._store.adopt(SCRATCH_SLOT, handle, length)
        try:
            return length, self._runner.read_state(SCRATCH_SLOT)
        finally:
            self._store.forget(SCRATCH_SLOT)

    def restore(self, ids: Sequence[int], arrays: StateArrays) -> None:
        """Keeps what `export` gave for these ids: the next request that begins with them goes on from there."""
        shapes = self._runner.shapes(len(ids))
        if {name: array.shape for name, array in arrays.items()} != shapes:
            raise BadFile(f"the saved state is not one of {len(ids):,} tokens of this model")
        try:
            while True:
                try:
                    self._runner.write_state(SCRATCH_SLOT, len(ids), arrays)
                    break
                except CacheFull:
                    if not self.prefixes.evict():
                        raise
            handle = self._store.keep(SCRATCH_SLOT, len(ids))
            if handle is not None:
                self.prefixes.store(ids, handle, wanted=True)
        finally:
            self._store.forget(SCRATCH_SLOT)

    def close(self) -> None:
        """Ends all requests, untold, and gives back all memory."""
        for sequence in [*self._waiting, *self._running]:
            sequence.end("abort")
        self._release_finished()
        self._updated = {}
        self._in_flight.clear()
        self._runner.close()

    def _find(self, id: int) -> list[TokenSequence]:
        return [sequence for sequence in (*self._waiting, *self._running) if sequence.id == id]

    # ---------------------------------------------------------------- before a step

    def _admit(self) -> None:
        """Seats for those who wait, first come first served; what others left is where they begin."""
        while self._waiting and self._free_slots and not self._waiting[0].in_flight and not self._preempted:
            sequence = self._waiting.popleft()
            sequence.assign_slot(self._free_slots.pop(0))
            self._running.append(sequence)
            if len(sequence.ids) >= sequence.max_length:
                sequence.end("length")
                self._updated[sequence] = None
                continue
            if sequence.request.keep and not self._store.rewinds:
                sequence.boundaries = frozenset([*sequence.request.marks, sequence.prompt - 1])
            found = self.prefixes.find(sequence.ids)
            if found is not None:
                handle, sequence.fed = found
                self._store.adopt(sequence.slot, handle, sequence.fed)
            if not sequence.started:
                sequence.started, sequence.reused = True, sequence.fed
            if not sequence.on_host:
                self._runner.remember(sequence.slot, sequence.ids, sequence.request.params)

    def _place(self) -> tuple[list[ScheduledChunk], Batch]:
        """The rows of the next step, with room for all they write; others give theirs back where there is none."""
        while True:
            self._admit()
            chunks = schedule(
                [sequence for sequence in self._running if not sequence.finish_reason], self._runner.chunk_size
            )
            rows = [(sequence.slot, start, sequence.rows(start, end)) for sequence, start, end, _ in chunks]
            batch = Batch.of(rows, wanted=[chunk.last for chunk in chunks])
            try:
                return chunks, self._runner.prepare(batch)
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
        sequence = self._running.pop()
        self._release(sequence)
        sequence.fed = 0
        self._waiting.appendleft(sequence)
        self._preempted = True

    # ---------------------------------------------------------------- a step

    def _submit(self) -> bool:
        """Sets the next step going; false where nobody has anything to feed."""
        chunks, batch = self._place()
        if not chunks:
            return False
        sampling = [chunk.sequence for chunk in chunks if chunk.last]
        pending = self._runner.submit(batch, self._draws(sampling))
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.fed = chunk.end
            sequence.in_flight += chunk.last
            if chunk.start < sequence.prompt:
                self._keep_prompt(sequence, chunk.end)
                self._updated[sequence] = None
        self._in_flight.append(InFlightStep(pending, sampling))
        return True

    def _draws(self, sampling: Sequence[TokenSequence]) -> SamplingInputs:
        """How the output rows are drawn from."""
        rows = np.array([sequence.draw() for sequence in sampling], DRAW)
        given = {row: mask for row, sequence in enumerate(sampling) if (mask := sequence.mask()) is not None}
        masks = None
        if given:
            masks = np.full((len(rows), -(-self._runner.vocabulary // 32)), 0xFFFFFFFF, np.uint32)
            masks[list(given)] = list(given.values())
        return SamplingInputs(rows, masks, any(sequence.on_host for sequence in sampling))

    def _collect(self) -> None:
        """Takes the tokens of the earliest step under way; those past an end are dropped."""
        step = self._in_flight.popleft()
        answer = step.pending.wait()
        for row, sequence in enumerate(step.sampling):
            sequence.in_flight -= 1
            if sequence.finish_reason:
                continue
            self._updated[sequence] = None
            try:
                sequence.take(sequence.choose(answer, row))
            except RwkvGpuError as error:
                sequence.end("error", error)

    # ---------------------------------------------------------------- after a step

    def _keep_prompt(self, sequence: TokenSequence, end: int) -> None:
        """Keeps what a step of a prompt has come to, where another prompt may share it."""
        asked = end in sequence.boundaries
        if asked or (self._store.rewinds == (end == sequence.prompt)):
            self._keep(sequence, end, asked=asked)

    def _keep(self, sequence: TokenSequence, most: int, *, asked: bool) -> None:
        """Keeps the beginning of a sequence; if nobody asked for it, only what is whole."""
        handle = self._store.keep(sequence.slot, most, whole=not asked)
        if handle is not None:
            self.prefixes.store(sequence.ids[: handle.length], handle, wanted=asked)

    def _release_finished(self) -> None:
        """Those who have ended give back their pages and their slot."""
        ended = [sequence for sequence in (*self._waiting, *self._running) if sequence.finish_reason]
        if not ended:
            return
        self._preempted = False
        self._waiting = deque(sequence for sequence in self._waiting if not sequence.finish_reason)
        self._running = [sequence for sequence in self._running if not sequence.finish_reason]
        for sequence in ended:
            self._updated[sequence] = None
            if sequence.slot < 0:
                continue
            if sequence.finish_reason == "error":
                self.prefixes.forget(sequence.ids)
            elif sequence.request.keep or (self._store.rewinds and sequence.finish_reason != "abort"):
                self._keep(sequence, len(sequence.ids), asked=sequence.request.keep)
            self._release(sequence)

    def _release(self, sequence: TokenSequence) -> None:
        self._store.forget(sequence.slot)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1

    def _fail(self, error: RwkvGpuError) -> None:
        """What goes wrong with a whole step ends all that run or wait, and what was kept is not to be trusted."""
        if isinstance(error, DeviceLost):
            self._lost = error
        for sequence in [*self._waiting, *self._running]:
            sequence.end("error", error)
        for step in self._in_flight if self._lost is None else ():
            with contextlib.suppress(RwkvGpuError):
                step.pending.wait()
        self._in_flight.clear()
        self.prefixes.clear()
