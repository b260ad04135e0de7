"""Many requests at a time through one model: each step mixes prompts and answers of all. Knows token ids only."""

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..errors import BadInput, CacheFull, DeviceLost
from ..models.registry import is_encoder, refuse_encoder
from ..ops.batch import Batch, Placement
from ..ops.memory import MAX_SEGMENTS
from ..ops.sampling import WORD_OF
from .evaluation import Evaluator
from .host_work import HostWork
from .request import Request, Update
from .runner import Runner, StateArrays
from .scheduler import ScheduledChunk, schedule
from .sequence import TokenSequence
from .slots import Slots
from .speculation.speculation import Speculation
from .speculation.speculator import Speculator
from .step_result import PendingStep, SamplingInputs, StepResult, choosing
from .stored_prefixes import StoredPrefixes

NUMBER, TOKENS = WORD_OF["number"], WORD_OF["tokens"]


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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock` tells what steps take, where the engine chooses by that."""
        config = runner.cache_config
        self._look_ahead = config.look_ahead if look_ahead is None else look_ahead
        if not 0 <= self._look_ahead <= config.look_ahead:
            raise BadInput(f"look_ahead is {look_ahead}; the model was loaded for 0 to {config.look_ahead}")
        self._runner = runner
        self._store = runner.store
        self._stored = StoredPrefixes(runner, initial_state)
        self.prefixes = self._stored.cache
        slots = min(runner.slots, runner.chunk_size, MAX_SEGMENTS)
        self._slots = Slots(slots, self._store, self._stored)
        evaluator = Evaluator(runner, self._slots, self._stored)
        self.evaluate, self.hidden = evaluator.evaluate, evaluator.hidden
        self._in_flight: deque[InFlightStep] = deque()  # in the order in which they will be done
        self._lost: DeviceLost | None = None
        self._host_work = HostWork()
        self._speculation = None if speculator is None else Speculation(speculator, runner, self._slots, clock)
        # First tokens that a sequence keeps when it goes on at the end of the context; None ends it there.
        self._context_shift = context_shift

    @property
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans and compiling their shaders."""
        drafting = 0.0 if self._speculation is None else self._speculation.speculator.compile_seconds
        return self._runner.compile_seconds + drafting

    @property
    def busy(self) -> bool:
        """Whether a step would do anything: a request runs or waits, or has an update that nobody has seen."""
        slots = self._slots
        if slots.waiting or self._in_flight or slots.updated:
            return True
        return any(not sequence.paused for sequence in slots.running)

    def warm_up(self) -> Generator[None]:
        """Gets ready, in pieces, what requests of all sizes would wait for; while some run it gives way to them."""
        if is_encoder(self._runner.model):  # whose texts are of any size
            return
        for _ in self._runner.warm_up():
            yield
            while self.busy:
                yield

    @property
    def activity(self) -> Activity:
        """Numbers of the moment. Any thread may ask, also during a step."""
        pages, states = self._store.free
        slots, prefixes = self._slots, self.prefixes
        return Activity(len(slots.running), len(slots.waiting), len(prefixes), prefixes.nbytes, pages, states)

    @property
    def drafted(self) -> int:
        """Tokens that were drafted."""
        return 0 if self._speculation is None else self._speculation.drafted

    @property
    def accepted(self) -> int:
        """Drafted tokens that were right."""
        return 0 if self._speculation is None else self._speculation.accepted

    def accept(self, request: Request) -> TokenSequence:
        """Checks a request, and gets ready what `add` takes. Any thread may call it."""
        refuse_encoder(self._runner.model)
        shifts = self._context_shift is not None
        begun = len(self._stored.begun)
        sequence = TokenSequence(request, self._runner.vocabulary, self._runner.context, shifts=shifts, begun=begun)
        if self._speculation is not None:
            self._speculation.begin(sequence)
        wanted = request.params.lora
        if wanted is not None:
            sequence.adapters = self._runner.adapters.scales(wanted)
            sequence.family = self._runner.adapters.family(sequence.adapters)
        sequence.key()  # which takes a while for a long prompt
        return sequence

    def add(self, request: Request | TokenSequence) -> int:
        """Takes a request on; gives the number that its updates will have."""
        if self._lost is not None:
            raise self._lost
        sequence = request if isinstance(request, TokenSequence) else self.accept(request)
        self._slots.add(sequence)
        return sequence.id

    def step(self) -> list[Update]:
        """Submits a step, collects what is known of earlier ones, and gives the updates of all who took part."""
        submitted = self._submit()
        ahead = min(self._look_ahead, self._runner.ahead, *[sequence.ahead for sequence in self._slots.running])
        if not submitted and self._in_flight:
            self._collect()
        while len(self._in_flight) > ahead:
            self._collect()
        self._slots.release_finished()
        if self._speculation is not None:
            self._speculation.measure(submitted)
        updated, self._slots.updated = self._slots.updated, {}
        return [sequence.update() for sequence in updated]

    def abort(self, id: int) -> None:
        """Ends a request; its pages are free at once. Harmless where it has ended."""
        self._slots.end(id, "abort")

    def stop(self, id: int, tokens: int | None = None) -> None:
        """Ends a request as by a stop id, after so many of its new tokens where that is given."""
        sequence = self._slots.sequences.get(id)
        if sequence is not None and tokens is not None:
            del sequence.ids[max(1, sequence.prompt + tokens - sequence.cut) :]
        self._slots.end(id, "stop")

    def pause(self, id: int) -> None:
        """Gives a request no more steps until `resume`: nobody reads what it has generated.

        Where others wait for its slot, it gives it to them, and is computed again from its tokens.
        """
        sequence = self._slots.sequences.get(id)
        if sequence is not None:
            sequence.paused = True

    def resume(self, id: int) -> None:
        """Lets a paused request go on. Harmless where it was not paused."""
        sequence = self._slots.sequences.get(id)
        if sequence is not None:
            self._slots.resume(sequence)

    def export(self, ids: Sequence[int]) -> tuple[int, StateArrays] | None:
        """What is stored of the longest prefix of a text: its length, and its arrays by name."""
        return self._stored.export(ids)

    def restore(self, ids: Sequence[int], arrays: StateArrays) -> None:
        """Stores what `export` gave for these ids: the next request that begins with them goes on from there."""
        self._stored.restore(ids, arrays)

    def stored(self, ids: Sequence[int]) -> int:
        """How many tokens of a prompt need not be computed."""
        found = self.prefixes.find(ids)
        return 0 if found is None else found[1]

    @property
    def rewinds(self) -> bool:
        """Whether what is stored of a text has all of its beginnings: keys and values do, states do not."""
        return self._store.rewinds

    def unread(self, id: int) -> int:
        """Tokens of a request's prompt that no step has had yet."""
        sequence = self._slots.sequences.get(id)
        return 0 if sequence is None or sequence.finish_reason else max(0, sequence.read_end - sequence.fed)

    def skip(self, id: int) -> bool:
        """Has a request that still reads its prompt go on from a longer prefix that was stored since it began."""
        if not self.unread(id):
            return False
        sequence = self._slots.sequences[id]
        return sequence.slot < 0 or self._stored.skip(sequence)

    def close(self) -> None:
        """Ends all requests, without updates, and gives back all memory."""
        for id in list(self._slots.sequences):
            self._slots.end(id, "abort")
        self._slots.updated = {}
        self._in_flight.clear()
        self._host_work.close()
        if self._speculation is not None:
            self._speculation.close()
        self._runner.close()

    # ---------------------------------------------------------------- before a step

    def _admit(self) -> None:
        """Starts those who get a slot; what goes wrong ends that one."""
        for sequence in self._slots.admit():
            try:
                self._start(sequence)
            except Exception as error:  # noqa: BLE001  it ends this request, and is told by its last update
                sequence.end("error", error)

    def _start(self, sequence: TokenSequence) -> None:
        """Gets a sequence that has its slot ready for its first step, or for its first one again."""
        if sequence.length >= sequence.max_length:
            sequence.end("length")
            return
        self._stored.begin(sequence)
        if not sequence.started:
            sequence.started, sequence.reused = True, sequence.fed
            if sequence.request.grammar is not None:
                sequence.start_work(self._host_work.executor)
        self._slots.draw(sequence)
        if not sequence.on_host:
            self._runner.remember(sequence.slot, sequence.ids, sequence.request.params)

    def _place(self) -> tuple[list[ScheduledChunk], list[Placement]]:
        """What the next step computes, and where; others give their pages back where there are too few."""
        roomy = True
        while True:
            if self._context_shift is not None:
                self._slots.shift(self._context_shift)
            if self._slots.waiting:
                self._admit()
            if [sequence for sequence in self._slots.running if sequence.work]:
                self._take_work()
            self._slots.release_finished()  # before others find too few pages
            ready = [s for s in self._slots.running if not (s.finish_reason or s.paused or s.work)]
            if self._speculation is not None:
                self._speculation.propose(ready, wanted=roomy)
            chunks = schedule(ready, self._runner.chunk_size)
            try:
                return chunks, self._store.place(chunks)
            except CacheFull:
                if any(sequence.draft for sequence in ready):
                    roomy = False  # drafts can wait
                elif not self._slots.free_pages():
                    raise

    def _take_work(self) -> None:
        """Takes what the host has computed for sequences."""
        for sequence in self._host_work.take(self._slots.running, idle=not self._in_flight):
            self._slots.updated[sequence] = None
            if self._speculation is not None:
                self._speculation.accept(sequence)

    # ---------------------------------------------------------------- a step

    def _submit(self) -> Sequence[ScheduledChunk]:
        """Submits the next step and gives its chunks; none if no tokens are ready. What goes wrong ends those in it."""
        chunks: Sequence[ScheduledChunk] = ()
        try:
            chunks, placements = self._place()
            if not chunks:
                return ()
            rows = [(slot, start, sequence.rows(start, end)) for slot, start, end, _, sequence in chunks]
            batch = Batch.of(rows, wanted=[chunk.samples for chunk in chunks], placements=placements)
            if [chunk for chunk in chunks if chunk.sequence.family]:
                batch = replace(batch, adapters=self._adapters(chunks))
            sampling = [chunk for chunk in chunks if chunk.samples]
            pending = self._runner.submit(batch, self._sampling_inputs(sampling))
        except Exception as error:  # noqa: BLE001  it ends the requests of the step, and is told by their last updates
            self._fail([chunk.sequence for chunk in chunks] or self._slots.running, error)
            return ()
        for _, start, end, samples, sequence in chunks:
            sequence.fed = end
            if sequence.draft:
                del sequence.draft[max(0, samples - 1) :]
            sequence.in_flight += samples
            if start < sequence.read_end:
                self._slots.updated[sequence] = None
                self._stored.keep_prompt(sequence, end)
        self._in_flight.append(InFlightStep(pending, sampling))
        return chunks

    def _adapters(self, chunks: Sequence[ScheduledChunk]) -> npt.NDArray[np.float32]:
        """How much each row of a step wants of each adapter."""
        default = self._runner.adapters.scales()
        each = [default if chunk.sequence.adapters is None else chunk.sequence.adapters for chunk in chunks]
        return np.repeat(np.array(each), [chunk.end - chunk.start for chunk in chunks], axis=0)

    def _sampling_inputs(self, sampling: Sequence[ScheduledChunk]) -> SamplingInputs:
        """How the output rows are sampled."""
        slots: list[int] = []
        numbers, lengths, masked = [], [], {}
        logits = adjusted = False
        for slot, *_, samples, sequence in sampling:
            logits |= sequence.on_host or sequence.request.params.logprobs > 0
            adjusted |= self._slots.adjusted[slot]
            if sequence.mask is not None and not sequence.on_host:
                masked[len(slots)] = sequence.mask
            first = len(sequence.ids) + sequence.in_flight
            for length in range(first, first + samples):
                slots.append(slot)
                lengths.append(length)
                numbers.append(length + sequence.cut - sequence.prompt)
        draws = self._slots.draws.take(slots, 0)
        draws[:, NUMBER], draws[:, TOKENS] = numbers, lengths
        masks = None
        if masked:
            masks = np.full((len(slots), -(-self._runner.vocabulary // 32)), 0xFFFFFFFF, np.uint32)
            for row, mask in masked.items():
                masks[row] = mask
        return SamplingInputs(draws, choosing(adjusted=adjusted, masked=bool(masked)), masks, logits)

    def _collect(self) -> None:
        """Takes the tokens of the earliest step in flight; those past an end are dropped."""
        step = self._in_flight.popleft()
        for chunk in step.sampling:
            chunk.sequence.in_flight -= chunk.samples
        try:
            result = step.pending.wait()
        except Exception as error:  # noqa: BLE001  it ends all requests that run, and is told by their last updates
            self._fail(self._slots.running, error)
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
                self._slots.end(sequence.id, sequence.finish_reason)

    def _sampled(self, sequence: TokenSequence, result: StepResult, rows: range) -> None:
        """Takes the tokens of its rows, or has the host find them; raises where the numbers of a row are none."""
        executor = self._host_work.executor
        if sequence.on_host:
            assert result.logits is not None
            sequence.start_work(executor, logits=result.logits[rows.start : rows.stop])
            return
        sequence.verify(result.sampled(rows, sequence.request.params.logprobs))
        if self._speculation is not None:
            self._speculation.accept(sequence)
        self._slots.updated[sequence] = None
        self._stored.keep_answer(sequence)
        if sequence.request.grammar is not None and not sequence.finish_reason:
            sequence.start_work(executor, token=sequence.ids[-1])

    def _fail(self, sequences: Sequence[TokenSequence], error: Exception) -> None:
        """What goes wrong with a whole step ends these sequences, or all after a loss; no kept state is trusted."""
        if isinstance(error, DeviceLost):
            self._lost = error
            sequences = list(self._slots.sequences.values())
            self._in_flight.clear()
        for sequence in sequences:
            sequence.end("error", error)
        for sequence in [*self._slots.waiting, *self._slots.parked]:
            if sequence.finish_reason:
                self._slots.end(sequence.id, "error")
        self._slots.release_finished()
        self.prefixes.clear()
