"""Many requests at a time through one model: each step mixes prompts and answers of all. Knows token ids only."""

import bisect
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, BadInput, CacheFull, DeviceLost
from ..ops.batch import Batch, Placement
from ..ops.memory import MAX_SEGMENTS
from ..ops.sampling import DRAW
from ..ops.vocabulary import PAGE
from .cache.prefixes import PrefixCache
from .cache.store import PrefixHandle
from .device_sampling import samples_on_device
from .host_work import HostWork
from .request import Request, Update
from .runner import Runner, StateArrays
from .scheduler import ScheduledChunk, schedule
from .sequence import TokenSequence
from .speculation.speculator import Speculator
from .step_result import PendingStep, SamplingInputs, StepResult

SCRATCH_SLOT = -1  # of a sequence that is read or written, and never steps


@dataclass(frozen=True, slots=True)
class Activity:
    """What an engine has at the moment."""

    running: int  # sequences that have a slot
    waiting: int  # for one
    prefixes: int  # that are stored
    prefix_bytes: int
    free_pages: int
    free_states: int


@dataclass(slots=True)
class InFlightStep:
    """A step that was submitted, and whose tokens its output rows are."""

    pending: PendingStep
    sampling: Sequence[ScheduledChunk]


class Engine:
    """Continuous batching: requests join and leave between steps. One thread drives it.

    Call `step` for as long as it is `busy`. Up to `look_ahead` steps are submitted before the tokens of the first are
    known, fewer where these keep the runner busy. What goes wrong with one request ends that one, by its last `Update`;
    what goes wrong with a step ends those who took part, and after a loss of the device nothing more can be added.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        look_ahead: int | None = None,
        speculator: Speculator | None = None,
        context_shift: int | None = None,
        initial_state: StateArrays | None = None,
    ) -> None:
        config = runner.cache_config
        self._look_ahead = config.look_ahead if look_ahead is None else look_ahead
        if not 0 <= self._look_ahead <= config.look_ahead:
            raise BadInput(f"look_ahead is {look_ahead}; the model was loaded for 0 to {config.look_ahead}")
        self._runner = runner
        self._store = runner.store
        self.prefixes = PrefixCache(self._store, config.cache_bytes, *runner.page_and_state_bytes, config.checkpoints)
        self._ids = itertools.count(1)
        self._sequences: dict[int, TokenSequence] = {}  # that have not ended
        self._waiting: list[TokenSequence] = []  # for a slot, in the order in which they came
        self._parked: set[TokenSequence] = set()  # that gave their slot away while they were paused
        self._running: list[TokenSequence] = []  # in the order in which they got their slots
        self._begun: list[int] = []  # tokens that stand for an initial state
        self._initial: tuple[PrefixHandle, int] | None = None
        if initial_state is not None:
            self._begin_with(initial_state)
        self._in_flight: deque[InFlightStep] = deque()  # in the order in which they will be done
        self._updated: dict[TokenSequence, None] = {}  # whose updates were not given yet
        slots = min(runner.slots, runner.chunk_size, MAX_SEGMENTS)
        self._free_slots = list(range(slots))
        self._draws = np.zeros(slots, DRAW)  # how each slot is sampled
        self._preempted = False  # somebody gave its pages back, so that nobody new starts until another has ended
        self._evaluating = False  # a text is half evaluated, and holds pages
        self._lost: DeviceLost | None = None
        self._host_work = HostWork()
        self._speculator = speculator
        # First tokens that a sequence keeps when it goes on at the end of the context; None ends it there.
        self._context_shift = context_shift
        self._generated = 0  # tokens, of all requests
        self._stepped = 0.0  # when the last step ended, by a clock that stands still while shaders are compiled
        self.drafted = self.accepted = 0  # tokens that were drafted, and those that were right

    def _begin_with(self, arrays: StateArrays) -> None:
        """Every text begins with this state, as if a token had been fed that left it."""
        self._begun = [0]
        self._runner.write_state(SCRATCH_SLOT, 1, arrays)
        handle = self._store.keep(SCRATCH_SLOT, 1)
        assert handle is not None, "a state of one token"
        self._initial = handle, 1
        self._store.forget(SCRATCH_SLOT)

    @property
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans and compiling their shaders."""
        return self._runner.compile_seconds

    @property
    def busy(self) -> bool:
        """Whether a step would do anything: a request runs or waits, or has an update that nobody has seen."""
        if self._waiting or self._in_flight or self._updated:
            return True
        return any(not sequence.paused for sequence in self._running)

    @property
    def activity(self) -> Activity:
        """Numbers of the moment. Any thread may ask, also during a step."""
        pages, states = self._store.free
        prefixes = self.prefixes
        return Activity(len(self._running), len(self._waiting), len(prefixes), prefixes.nbytes, pages, states)

    def accept(self, request: Request) -> TokenSequence:
        """Checks a request, and gets ready what `add` takes. Any thread may call it."""
        shifts = self._context_shift is not None
        begun = len(self._begun)
        sequence = TokenSequence(request, self._runner.vocabulary, self._runner.context, shifts=shifts, begun=begun)
        if self._speculator is not None:
            sequence.drafting = self._speculator.drafting_for(sequence)
        wanted = request.params.lora
        if wanted is not None:
            sequence.adapters = self._runner.adapters.scales(wanted)
            sequence.family = self._runner.adapters.family(sequence.adapters)
        return sequence

    def add(self, request: Request | TokenSequence) -> int:
        """Takes a request on; gives the number that its updates will have."""
        if self._lost is not None:
            raise self._lost
        sequence = request if isinstance(request, TokenSequence) else self.accept(request)
        sequence.id = next(self._ids)
        self._sequences[sequence.id] = sequence
        self._waiting.append(sequence)
        return sequence.id

    def step(self) -> list[Update]:
        """Submits a step, collects what is known of earlier ones, and gives the updates of all who took part."""
        generated = self._generated
        submitted = self._submit()
        synchronous = any(sequence.synchronous for sequence in self._running)
        ahead = 0 if synchronous else min(self._look_ahead, self._runner.ahead)
        if not submitted and self._in_flight:
            self._collect()
        while len(self._in_flight) > ahead:
            self._collect()
        self._release_finished()
        self._measure(self._generated - generated)
        updated, self._updated = self._updated, {}
        return [sequence.update() for sequence in updated]

    def abort(self, id: int) -> None:
        """Ends a request; its pages are free at once. Harmless where it has ended."""
        self._end(id, "abort")

    def stop(self, id: int, tokens: int | None = None) -> None:
        """Ends a request as by a stop id, after so many of its new tokens where that is given."""
        sequence = self._sequences.get(id)
        if sequence is not None and tokens is not None:
            del sequence.ids[max(1, sequence.prompt + tokens - sequence.cut) :]
        self._end(id, "stop")

    def pause(self, id: int) -> None:
        """Gives a request no more steps until `resume`: nobody reads what it has generated.

        Where others wait for its slot, it gives it to them, and is computed again from its tokens.
        """
        sequence = self._sequences.get(id)
        if sequence is not None:
            sequence.paused = True

    def resume(self, id: int) -> None:
        """Lets a paused request go on. Harmless where it was not paused."""
        sequence = self._sequences.get(id)
        if sequence is None:
            return
        sequence.paused = False
        if sequence in self._parked:
            self._parked.remove(sequence)
            self._wait(sequence)

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
            if self._initial is not None:
                self._store.adopt(slot, *self._initial)
            for at in range(0, len(ids), size):
                batch = Batch.of([(slot, len(self._begun) + at, ids[at : at + size])], every=True)
                while True:
                    try:
                        rows = run(batch)
                        break
                    except CacheFull:
                        if not self._free_pages():
                            raise
                yield rows
        finally:
            self._store.forget(slot)
            self._free_slots.append(slot)
            self._evaluating = self._preempted = False

    def export(self, ids: Sequence[int]) -> tuple[int, StateArrays] | None:
        """What is kept of the longest prefix of a sequence: its length, and its arrays by name."""
        found = self.prefixes.find([*self._begun, *ids, 0])  # the last would be left out
        if found is None or found[1] <= len(self._begun):
            return None
        handle, length = found
        self._store.adopt(SCRATCH_SLOT, handle, length)
        try:
            return length - len(self._begun), self._runner.read_state(SCRATCH_SLOT)
        finally:
            self._store.forget(SCRATCH_SLOT)

    def stored(self, ids: Sequence[int]) -> int:
        """How many tokens of a prompt need not be computed."""
        found = self.prefixes.find(ids)
        return 0 if found is None else found[1]

    def restore(self, ids: Sequence[int], arrays: StateArrays) -> None:
        """Keeps what `export` gave for these ids: the next request that begins with them goes on from there."""
        ids = [*self._begun, *ids]
        fitted = self._runner.fitted(len(ids), arrays)
        if fitted is None:
            raise BadFile(f"the saved state is not one of {len(ids):,} tokens of this model")
        try:
            while True:
                try:
                    self._runner.write_state(SCRATCH_SLOT, len(ids), fitted)
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
        """Ends all requests, without updates, and gives back all memory."""
        for id in list(self._sequences):
            self._end(id, "abort")
        self._updated = {}
        self._in_flight.clear()
        self._host_work.close()
        if self._speculator is not None:
            self._speculator.close()
        self._runner.close()

    # ---------------------------------------------------------------- before a step

    def _admit(self) -> None:
        """Slots for those who wait, first come first served; each begins with the longest prefix that is kept."""
        if self._waiting and not self._free_slots:
            self._park()
        if self._preempted and not self._evaluating and all(sequence.paused for sequence in self._running):
            self._preempted = False
        while self._waiting and self._free_slots and not self._waiting[0].in_flight and not self._preempted:
            sequence = self._waiting.pop(0)
            sequence.slot = self._free_slots.pop(0)
            self._running.append(sequence)
            try:
                self._start(sequence)
            except Exception as error:  # noqa: BLE001  it ends this request, and is told by its last update
                sequence.end("error", error)

    def _start(self, sequence: TokenSequence) -> None:
        """Gets a sequence that has its slot ready for its first step, or for its first one again."""
        slot, request = sequence.slot, sequence.request
        if sequence.length >= sequence.max_length:
            sequence.end("length")
            return
        if sequence.cut:
            sequence.boundaries = frozenset()
        elif request.keep and not self._store.rewinds:
            marks = (mark + sequence.begun for mark in request.marks)
            sequence.boundaries = frozenset([*marks, sequence.prompt - 1])
        found = self.prefixes.find(sequence.keyed(sequence.ids)) or self._initial
        if found is not None:
            handle, sequence.fed = found
            self._store.adopt(slot, handle, sequence.fed)
        sequence.checkpoint = sequence.fed
        if not self._store.rewinds:
            # Two texts begin alike up to here, so a third may: from now on there is a state.
            branch = self.prefixes.branch(sequence.keyed(sequence.ids))
            if sequence.fed + PAGE <= branch < sequence.prompt:
                sequence.boundaries |= {branch}
        if not sequence.started:
            sequence.started, sequence.reused = True, sequence.fed
            if request.grammar is not None:
                sequence.start_work(self._host_work.executor)
        self._draws[slot] = sequence.draw()
        if not sequence.on_host:
            self._runner.remember(slot, sequence.ids, request.params)

    def _place(self) -> tuple[list[ScheduledChunk], list[Placement]]:
        """What the next step computes, and where; others give their pages back where there are too few."""
        roomy = True
        while True:
            self._shift()
            self._admit()
            told = self._host_work.take(self._running, idle=not self._in_flight)
            self._updated.update(dict.fromkeys(told))
            for sequence in told:
                if sequence.rows_right:
                    self._settle(sequence, sequence.rows_right)
            ready = [s for s in self._running if not (s.finish_reason or s.paused or s.work)]
            self._draft(ready, wanted=roomy)
            chunks = schedule(ready, self._runner.chunk_size)
            try:
                return chunks, self._store.place(chunks)
            except CacheFull:
                if any(sequence.draft for sequence in ready):
                    roomy = False  # drafts can wait
                elif not self._free_pages():
                    raise

    def _free_pages(self) -> bool:
        """Frees pages where a step found too few; false where nobody can do without."""
        if self.prefixes.evict():
            return True
        if len(self._running) < (1 if self._evaluating else 2):
            return False
        if not self._park():
            self._wait(self._preempt(self._running[-1]))
            self._preempted = True
        return True

    def _preempt(self, sequence: TokenSequence) -> TokenSequence:
        """A sequence gives back its slot and its pages, and will begin again from its tokens."""
        self._running.remove(sequence)
        self._release(sequence)
        sequence.fed = 0
        return sequence

    def _shift(self) -> None:
        """Sequences at the end of the context go on without their middle, which is computed again from the rest."""
        for sequence in [one for one in self._running if one.full]:
            assert self._context_shift is not None
            sequence.cut_middle(self._context_shift)
            self._wait(self._preempt(sequence))

    def _park(self) -> bool:
        """A paused sequence gives its slot and its pages to others; false where there is none."""
        for sequence in self._running:
            if sequence.paused and not sequence.finish_reason:
                self._parked.add(self._preempt(sequence))
                return True
        return False

    def _wait(self, sequence: TokenSequence) -> None:
        """Has a sequence wait for a slot, where it stood when it came."""
        bisect.insort(self._waiting, sequence, key=lambda waiting: waiting.id)

    # ---------------------------------------------------------------- a step

    def _submit(self) -> bool:
        """Sets the next step going; false where nobody has anything to feed. What goes wrong ends those in it."""
        chunks: Sequence[ScheduledChunk] = ()
        try:
            chunks, placements = self._place()
            if not chunks:
                return False
            rows = [(slot, start, sequence.rows(start, end)) for slot, start, end, _, sequence in chunks]
            batch = Batch.of(rows, wanted=[chunk.samples for chunk in chunks], placements=placements)
            if any(chunk.sequence.family for chunk in chunks):
                batch = replace(batch, adapters=self._adapters(chunks))
            sampling = [chunk for chunk in chunks if chunk.samples]
            pending = self._runner.submit(batch, self._sampling_inputs(sampling))
        except Exception as error:  # noqa: BLE001  it ends the requests of the step, and is told by their last updates
            self._fail([chunk.sequence for chunk in chunks] or self._running, error)
            return False
        for _, start, end, samples, sequence in chunks:
            sequence.fed = end
            del sequence.draft[max(0, samples - 1) :]
            sequence.in_flight += samples
            if start < sequence.prompt:
                self._updated[sequence] = None
                self._keep_prompt(sequence, end)
        self._in_flight.append(InFlightStep(pending, sampling))
        return True

    def _adapters(self, chunks: Sequence[ScheduledChunk]) -> npt.NDArray[np.float32]:
        """How much each row of a step wants of each adapter."""
        default = self._runner.adapters.scales()
        each = [default if chunk.sequence.adapters is None else chunk.sequence.adapters for chunk in chunks]
        return np.repeat(np.array(each), [chunk.end - chunk.start for chunk in chunks], axis=0)

    def _sampling_inputs(self, sampling: Sequence[ScheduledChunk]) -> SamplingInputs:
        """How the output rows are sampled."""
        slots: list[int] = []
        numbers, lengths, masked, on_host = [], [], {}, False
        for chunk in sampling:
            sequence = chunk.sequence
            on_host |= sequence.on_host
            if sequence.mask is not None and not sequence.on_host:
                masked[len(slots)] = sequence.mask
            for row in range(chunk.samples):
                length = len(sequence.ids) + sequence.in_flight + row
                slots.append(sequence.slot)
                lengths.append(length)
                numbers.append(length + sequence.cut - sequence.prompt)
        rows = self._draws[slots]
        rows["number"], rows["tokens"] = numbers, lengths
        masks = None
        if masked:
            masks = np.full((len(slots), -(-self._runner.vocabulary // 32)), 0xFFFFFFFF, np.uint32)
            for row, mask in masked.items():
                masks[row] = mask
        return SamplingInputs(rows, masks, on_host)

    def _collect(self) -> None:
        """Takes the tokens of the earliest step in flight; those past an end are dropped."""
        step = self._in_flight.popleft()
        for chunk in step.sampling:
            chunk.sequence.in_flight -= chunk.samples
        try:
            result = step.pending.wait()
        except Exception as error:  # noqa: BLE001  it ends all requests that run, and is told by their last updates
            self._fail(self._running, error)
            return
        row = 0
        for chunk in step.sampling:
            sequence, row = chunk.sequence, row + chunk.samples
            if sequence.finish_reason:
                continue
            try:
                self._sampled(sequence, result, range(row - chunk.samples, row))
            except Exception as error:  # noqa: BLE001  it ends this request, and is told by its last update
                sequence.end("error", error)
            if sequence.finish_reason and sequence.slot < 0:  # it gave its slot back while this step was in flight
                self._end(sequence.id, sequence.finish_reason)

    def _sampled(self, sequence: TokenSequence, result: StepResult, rows: range) -> None:
        """Takes the tokens of its rows, or has the host find them; raises where the numbers of a row are none."""
        executor = self._host_work.executor
        if sequence.on_host:
            assert result.logits is not None
            sequence.start_work(executor, logits=result.logits[rows.start : rows.stop])
            return
        right = sequence.verify(result.rows[row].sampled() for row in rows)
        self._settle(sequence, right)
        self._updated[sequence] = None
        if not self._store.rewinds and not sequence.finish_reason:
            known = min(sequence.fed, len(sequence.ids))
            if known - sequence.checkpoint >= self._runner.cache_config.checkpoint_interval:
                self._keep(sequence, known, asked=False)
        if sequence.request.grammar is not None and not sequence.finish_reason:
            sequence.start_work(executor, token=sequence.ids[-1])

    # ---------------------------------------------------------------- drafts

    def _draft(self, ready: Sequence[TokenSequence], *, wanted: bool) -> None:
        """Gives sequences that decode tokens to verify, where that pays."""
        speculator = self._speculator
        if speculator is None:
            return
        for sequence in ready:
            sequence.draft = []
            if sequence.drafting is not None:
                self._turn(sequence, speculator.gate.on)
        if wanted and speculator.gate.on:
            speculator.draft(ready, self._runner.chunk_size)

    def _turn(self, sequence: TokenSequence, on: bool) -> None:
        """Drafting on or off. Rows of one sequence are sampled one after the other where a grammar or penalties ask."""
        assert sequence.drafting is not None
        sequence.drafting.on = on
        here = not sequence.samples_in_order or not samples_on_device(sequence.request.params)
        if here or on == sequence.on_host or sequence.in_flight:
            return
        sequence.sample_on_host(on)
        self._draws[sequence.slot] = sequence.draw()
        if not on:
            self._runner.remember(sequence.slot, sequence.ids, sequence.request.params)

    def _settle(self, sequence: TokenSequence, right: int) -> None:
        """Of the rows of its last step so many were right; what the others have written is forgotten."""
        self._generated += right
        drafted, sequence.draft, sequence.rows_right = len(sequence.draft), [], 0
        if not drafted:
            return
        assert sequence.drafting is not None
        sequence.drafting.verified(drafted, right - 1)
        self.drafted += drafted
        self.accepted += right - 1
        if sequence.slot >= 0 and right <= drafted:
            sequence.fed = self._store.truncate(sequence.slot, sequence.fed - (1 + drafted - right))

    def _measure(self, tokens: int) -> None:
        """Tells the gate how long a step took, where all that runs decodes."""
        if self._speculator is None:
            return
        now = time.perf_counter() - self.compile_seconds
        seconds, self._stepped = now - self._stepped, now
        decodes = all(len(sequence.ids) - sequence.fed <= 1 for sequence in self._running)
        drafts = any(sequence.drafting for sequence in self._running)
        running = tuple(sequence.id for sequence in self._running) if decodes and drafts else None
        self._speculator.gate.stepped(running, tokens, seconds)

    # ---------------------------------------------------------------- after a step

    def _keep_prompt(self, sequence: TokenSequence, end: int) -> None:
        """Stores what a step of a prompt has come to: a whole prompt, or states on the way through it."""
        asked, way = end in sequence.boundaries, end - sequence.checkpoint
        wanted = asked or (end == sequence.prompt and not self._store.recurrent)
        if not self._store.rewinds and end != sequence.prompt:
            wanted |= way >= self._runner.cache_config.checkpoint_interval
        if wanted:
            self._keep(sequence, end, asked=asked)

    def _keep(self, sequence: TokenSequence, most: int, *, asked: bool) -> None:
        """Stores the prefix of a sequence; if no request asked for it, only what is whole."""
        handle = None
        try:
            handle = self._store.keep(sequence.slot, most, whole=not asked)
            if handle is not None:
                sequence.checkpoint = handle.length
                self.prefixes.store(sequence.keyed(sequence.ids[: handle.length]), handle, wanted=asked)
        except Exception as error:  # noqa: BLE001  it ends this request, and is told by its last update
            sequence.finish_reason, sequence.error = "error", error
            if handle is not None:
                self._store.release(handle)

    def _end(self, id: int, reason: str) -> None:
        sequence = self._sequences.get(id)
        if sequence is None:
            return
        sequence.end(reason)
        if sequence in self._parked:
            self._parked.remove(sequence)
            self._forget(sequence)
        elif sequence.slot < 0:
            self._waiting.remove(sequence)
            self._forget(sequence)
        self._release_finished()

    def _release_finished(self) -> None:
        """Those who have ended give back their pages and their slot."""
        finished = [sequence for sequence in self._running if sequence.finish_reason]
        if not finished:
            return
        self._preempted = False
        self._running = [sequence for sequence in self._running if not sequence.finish_reason]
        for sequence in finished:
            if sequence.finish_reason == "error":
                self.prefixes.forget(sequence.keyed(sequence.ids))
            elif sequence.request.keep or (not self._store.recurrent and sequence.finish_reason != "abort"):
                self._keep(sequence, len(sequence.ids), asked=sequence.request.keep)
            self._release(sequence)
            self._forget(sequence)

    def _release(self, sequence: TokenSequence) -> None:
        self._store.forget(sequence.slot)
        if self._speculator is not None:
            self._speculator.release(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1

    def _forget(self, sequence: TokenSequence) -> None:
        """A sequence has ended: its last update is to be given."""
        self._updated[sequence] = None
        del self._sequences[sequence.id]

    def _fail(self, sequences: Sequence[TokenSequence], error: Exception) -> None:
        """What goes wrong with a whole step ends these sequences, or all after a loss; no kept state is trusted."""
        if isinstance(error, DeviceLost):
            self._lost = error
            sequences = list(self._sequences.values())
            self._in_flight.clear()
        for sequence in sequences:
            sequence.end("error", error)
        for sequence in [*self._waiting, *self._parked]:
            if sequence.finish_reason:
                self._end(sequence.id, "error")
        self._release_finished()
        self.prefixes.clear()
