"""Continuous batching: runs many requests through one model.

Each step mixes prompt and decode rows. Sees token ids only.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..errors import BadInput, CacheFull, DeviceLost
from ..models.registry import diffusion_of, reads_prompts_whole, reads_whole_texts, refuse_encoder, start_of
from ..ops.batch import Batch, Placement
from ..ops.memory import MAX_SEGMENTS
from ..ops.sampling import WORD_OF
from .cache.prefix_index import Key
from .diffusion import DIFFUSION, DiffusionDecoder
from .evaluation import Evaluator
from .host_work import HostWork
from .media import MediaEncoder, media_inputs
from .request import Request, Update, check_length
from .runner import Runner, StateArrays
from .scheduler import ScheduledChunk, schedule
from .sequence import TokenSequence
from .slots import Slots
from .speculation.head_drafts import QueuedDrafts
from .speculation.speculation import Speculation
from .speculation.speculator import Speculator
from .step_result import PendingStep, SamplingInputs, StepResult, choosing
from .stored_prefixes import StoredPrefixes

ENCODER_DECODER = "this model is an encoder-decoder: it"
NUMBER, TOKENS = WORD_OF["number"], WORD_OF["tokens"]


@dataclass(frozen=True, slots=True)
class Activity:
    """Current load of an engine."""

    running: int  # sequences that have a slot
    waiting: int  # sequences that wait for a slot
    prefixes: int  # stored prefixes
    prefix_bytes: int
    free_pages: int
    free_states: int
    steps: int = 0  # steps so far
    chunks: int = 0  # sequences in these steps, each counted again in each step
    verified: int = 0  # drafts that these steps verified
    gain: float | None = None  # speed of steps with drafts, relative to steps without; None if it is not known


@dataclass(slots=True)
class InFlightStep:
    """A submitted step, and which sequence each of its output rows belongs to."""

    pending: PendingStep
    sampling: Sequence[ScheduledChunk]
    verified: dict[TokenSequence, list[int]]  # the draft of each sequence that has one
    drafts: QueuedDrafts | None = None  # the same, if they were queued before it
    counts: bool = False  # whether the device counts its right drafts


class Engine:
    """Continuous batching: requests join and leave between steps. One thread drives it.

    Call `step` while the engine is `busy`. Up to `look_ahead` steps are submitted before the tokens of the first are
    known; fewer if that already keeps the runner busy. An error in one request ends that request, reported in its last
    `Update`. An error in a step ends all requests in it. After the device is lost, no request can be added.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        look_ahead: int | None = None,
        speculator: Speculator | None = None,
        context_shift: int | None = None,
        initial_state: StateArrays | None = None,
        media: MediaEncoder | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock` measures step times, which decide whether the engine drafts tokens."""
        config = runner.cache_config
        self._look_ahead = config.look_ahead if look_ahead is None else look_ahead
        if not 0 <= self._look_ahead <= config.look_ahead:
            raise BadInput(f"look_ahead is {look_ahead}; the model was loaded for 0 to {config.look_ahead}")
        self._runner = runner
        self._media = media
        self._store = runner.store
        self._stored = StoredPrefixes(runner, initial_state)
        self.prefixes = self._stored.cache
        slots = min(runner.slots, runner.chunk_size, MAX_SEGMENTS)
        self._slots = Slots(slots, self._store, self._stored)
        evaluator = Evaluator(runner, self._slots, self._stored)
        self.evaluate, self.hidden = evaluator.evaluate, evaluator.hidden
        self._in_flight: deque[InFlightStep] = deque()  # oldest first
        self._lost: DeviceLost | None = None
        self._steps = self._chunks = self._verified = 0
        self._host_work = HostWork()
        self._speculation = None if speculator is None else Speculation(speculator, runner, self._slots, clock)
        how = diffusion_of(runner.model)
        self._diffusion = None if how is None else DiffusionDecoder(runner, self._slots, how)
        self._answer_start = start_of(runner.model)
        self._whole_prompts = reads_prompts_whole(runner.model)
        kind = DIFFUSION if how is not None else "" if self._answer_start is None else ENCODER_DECODER
        if kind and (context_shift is not None or initial_state is not None or speculator is not None):
            raise BadInput(f"{kind} supports no context shift, initial state or drafts")
        # Number of first tokens kept when the context is full and the middle is cut. None ends the sequence instead.
        self._context_shift = context_shift

    @property
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans and compiling their shaders."""
        drafting = 0.0 if self._speculation is None else self._speculation.speculator.compile_seconds
        return self._runner.compile_seconds + drafting

    @property
    def busy(self) -> bool:
        """True if a step has work: a request runs or waits, or an update was not delivered yet."""
        slots = self._slots
        if slots.waiting or self._in_flight or slots.updated:
            return True
        return any(not sequence.paused for sequence in slots.running)

    def warm_up(self) -> Generator[None]:
        """Prepares in pieces what requests would otherwise wait for; pauses while requests run."""
        if reads_whole_texts(self._runner.model):  # texts have any length
            return
        for _ in self._runner.warm_up():
            yield
            while self.busy:
                yield

    @property
    def activity(self) -> Activity:
        """Returns the current load. Any thread may call it, also during a step."""
        pages, states = self._store.free
        slots, prefixes = self._slots, self.prefixes
        counts = len(slots.running), len(slots.waiting), len(prefixes), prefixes.nbytes
        gain = None if self._speculation is None else self._speculation.speculator.gain.factor
        return Activity(*counts, pages, states, self._steps, self._chunks, self._verified, gain)

    @property
    def drafted(self) -> int:
        """Number of drafted tokens."""
        return 0 if self._speculation is None else self._speculation.drafted

    @property
    def accepted(self) -> int:
        """Drafted tokens that were accepted."""
        return 0 if self._speculation is None else self._speculation.accepted

    def accept(self, request: Request) -> TokenSequence:
        """Checks a request and prepares it for `add`. Any thread may call it."""
        refuse_encoder(self._runner.model)
        shifts = self._context_shift is not None
        begun = len(self._stored.begun)
        if request.images and self._media is None:
            raise BadInput("this model was loaded without a projector, so it takes no images and no audio")
        if self._answer_start is not None:
            request = replace(self._read_once(request), ids=[*request.ids, self._answer_start])
        if self._whole_prompts:
            request = self._read_once(request)
        sequence = TokenSequence(
            request,
            self._runner.vocabulary,
            self._runner.context,
            shifts=shifts,
            begun=begun,
        )
        if self._whole_prompts:
            sequence.images.prompt = sequence.prompt
        if self._speculation is not None and not request.images:
            self._speculation.begin(sequence)
        wanted = request.params.lora
        if wanted is not None:
            sequence.adapters = self._runner.adapters.scales(wanted)
            sequence.family = self._runner.adapters.family(sequence.adapters)
        if self._diffusion is not None:
            self._diffusion.check(sequence)
        sequence.key()  # slow for a long prompt
        return sequence

    def _read_once(self, request: Request) -> Request:
        """Returns a request whose prompt fits in a step, and is not stored: each of its rows depends on all of it."""
        check_length(len(request.ids), self._runner.chunk_size)
        return replace(request, salt=replace(request.salt, once=True))

    def add(self, request: Request | TokenSequence) -> int:
        """Adds a request. Returns the id that its updates carry."""
        if self._lost is not None:
            raise self._lost
        sequence = request if isinstance(request, TokenSequence) else self.accept(request)
        self._slots.add(sequence)
        return sequence.id

    def step(self) -> list[Update]:
        """Submits a step, collects results of earlier ones, and returns the updates of all sequences involved."""
        submitted = self._submit() if self._diffusion is None else self._diffuse(self._diffusion)
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

    def _diffuse(self, decoder: DiffusionDecoder) -> Sequence[ScheduledChunk]:
        """Runs a step of a diffusion model and leaves no chunk in flight. An error ends all running requests."""
        try:
            self._chunks += decoder.step()
            self._steps += 1
        except Exception as error:  # noqa: BLE001  ends the requests of the step; reported in their last updates
            self._fail(self._slots.running, error)
        return ()

    def abort(self, id: int) -> None:
        """Ends a request and frees its pages at once. Does nothing if it has ended."""
        self._slots.end(id, "abort")

    def stop(self, id: int, tokens: int | None = None) -> None:
        """Ends a request as if by a stop id; with `tokens`, truncates its answer to that many new tokens."""
        sequence = self._slots.sequences.get(id)
        if sequence is not None and tokens is not None:
            del sequence.ids[max(1, sequence.prompt + tokens - sequence.cut) :]
        self._slots.end(id, "stop")

    def pause(self, id: int) -> None:
        """Gives a request no more steps until `resume`, because its output is not being read.

        If other requests need its slot, it loses the slot and its tokens are computed again later.
        """
        sequence = self._slots.sequences.get(id)
        if sequence is not None:
            sequence.paused = True

    def resume(self, id: int) -> None:
        """Resumes a paused request. Does nothing if it was not paused."""
        sequence = self._slots.sequences.get(id)
        if sequence is not None:
            self._slots.resume(sequence)

    def export(self, ids: Sequence[int] | Key) -> tuple[int, StateArrays] | None:
        """Returns the longest stored prefix of a text: its length, and its arrays by name."""
        return self._stored.export(ids)

    def restore(self, ids: Sequence[int] | Key, arrays: StateArrays) -> None:
        """Stores what `export` returned for these ids. The next request with this prefix continues from there."""
        self._stored.restore(ids, arrays)

    def forget(self, ids: Sequence[int] | Key) -> None:
        """Removes the stored prefixes of a text."""
        self._stored.forget(ids)

    def stored(self, ids: Sequence[int] | Key) -> int:
        """Number of prompt tokens that need not be computed."""
        return self._stored.length(ids)

    @property
    def rewinds(self) -> bool:
        """True if a stored text can be cut at any length: possible with keys and values, not with states."""
        return self._store.rewinds

    def unread(self, id: int) -> int:
        """Prompt tokens of a request that no step has computed yet."""
        sequence = self._slots.sequences.get(id)
        return 0 if sequence is None or sequence.finish_reason else max(0, sequence.read_end - sequence.fed)

    def skip(self, id: int) -> bool:
        """Lets a request that still reads its prompt continue from a longer prefix stored since it began."""
        if not self.unread(id):
            return False
        sequence = self._slots.sequences[id]
        return sequence.slot < 0 or self._stored.skip(sequence)

    def close(self) -> None:
        """Ends all requests, without updates, and frees all memory."""
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
        """Starts sequences that get a slot. An error ends only the sequence it belongs to."""
        for sequence in self._slots.admit():
            try:
                self._start(sequence)
            except Exception as error:  # noqa: BLE001  ends this request; reported in its last update
                sequence.end("error", error)

    def _start(self, sequence: TokenSequence) -> None:
        """Prepares a sequence that has just got a slot for its first step, or for its restart."""
        if sequence.length >= sequence.max_length:
            sequence.end("length")
            return
        self._stored.begin(sequence)
        if not sequence.started:
            sequence.started, sequence.reused = True, sequence.fed
            if sequence.request.grammar is not None:
                sequence.start_work(self._host_work.executor)
        if self._answer_start is not None and not self._read_source(sequence):
            return
        self._slots.draw(sequence)
        self._runner.forget_row(sequence.slot, sequence.fed)
        if not sequence.on_host:
            self._runner.remember(sequence.slot, sequence.images.text(sequence.ids), sequence.request.params)

    def _read_source(self, sequence: TokenSequence) -> bool:
        """Runs the encoder over the source of a sequence. False if the sequence lost its slot to free pages."""
        source = sequence.ids[: sequence.prompt - 1]
        while sequence.slot >= 0:
            try:
                self._runner.hidden(Batch.of([(sequence.slot, 0, source)]))
            except CacheFull:
                if not self._slots.free_pages():
                    raise
            else:
                sequence.fed = len(source)
                return True
        return False

    def _place(self) -> tuple[list[ScheduledChunk], list[Placement]]:
        """Chooses and places the chunks of the next step. Sequences may be preempted to free pages."""
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
            if self._speculation is not None and not self._speculation.propose(ready, wanted=roomy):
                return [], []
            if self._media is not None:
                ready = self._seeing(ready, self._media)
            chunks = schedule(ready, self._runner.chunk_size)
            try:
                return chunks, self._store.place(chunks)
            except CacheFull:
                if any(sequence.draft for sequence in ready):
                    roomy = False  # drafts can wait
                elif not self._slots.free_pages():
                    raise

    def _seeing(self, ready: list[TokenSequence], media: MediaEncoder) -> list[TokenSequence]:
        """Encodes images of the next step, and returns the sequences that take part in it.

        The first sequence with images that are not encoded waits for them, and those after it with such images wait
        for it. All others continue after each part of an image. A failing image ends its sequence alone.
        """
        rows = self._runner.chunk_size
        waiting = [one for one in ready if one.images.unencoded(one.fed, one.fed + rows)]
        if not waiting:
            return ready
        others, first = [one for one in ready if one not in waiting], waiting[0]
        try:
            while (image := first.images.unencoded(first.fed, first.fed + rows)) is not None:
                if media.advance(image, first.images.salt):
                    first.images.encoded.add(image.identity)
                if others:
                    return others
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001  reported in its last update
            first.end("error", error)
            return others
        return [first]

    def _take_work(self) -> None:
        """Takes finished host results (sampled tokens, masks) into their sequences."""
        for sequence in self._host_work.take(self._slots.running, idle=not self._in_flight):
            self._slots.updated[sequence] = None
            if self._speculation is not None:
                self._speculation.accept(sequence)

    # ---------------------------------------------------------------- a step

    def _submit(self) -> Sequence[ScheduledChunk]:
        """Submits the next step and returns its chunks; none if no tokens are ready.

        An error ends the sequences in it.
        """
        chunks: Sequence[ScheduledChunk] = ()
        try:
            chunks, placements = self._place()
            if not chunks:
                return ()
            drafts = None if self._speculation is None else self._speculation.submit(chunks, placements)
            rows = [(slot, start, sequence.rows(start, end)) for slot, start, end, _, sequence, _ in chunks]
            batch = Batch.of(rows, wanted=[chunk.samples for chunk in chunks], placements=placements)
            # All rows are sampled, and on the device.
            follows = drafts is not None and self._runner.follows and len(batch.outputs) == batch.rows
            if follows and not any(chunk.sequence.on_host for chunk in chunks):
                batch = batch.following({chunk.slot: chunk.start for chunk in chunks if chunk.unverified})
            if [chunk for chunk in chunks if chunk.sequence.family]:
                batch = replace(batch, adapters=self._adapters(chunks))
            if (self._media or self._whole_prompts) and [chunk for chunk in chunks if chunk.sequence.images]:
                batch = self._with_images(batch, chunks)
            sampling = [chunk for chunk in chunks if chunk.samples]
            pending = self._runner.submit(batch, self._sampling_inputs(sampling))
        except Exception as error:  # noqa: BLE001  ends the requests of the step; reported in their last updates
            self._fail([chunk.sequence for chunk in chunks] or self._slots.running, error)
            return ()
        self._steps, self._chunks = self._steps + 1, self._chunks + len(chunks)
        verified: dict[TokenSequence, list[int]] = {}
        for _, start, end, samples, sequence, _ in chunks:
            sequence.fed = end
            sequence.in_flight += samples
            if samples > 1:
                self._verified += 1
                verified[sequence] = sequence.draft[: samples - 1]
                sequence.unverified += (samples - 1) * batch.follows
            sequence.draft = []
            if start < sequence.read_end:
                self._slots.updated[sequence] = None
                self._stored.keep_prompt(sequence, end)
        self._in_flight.append(InFlightStep(pending, sampling, verified, drafts, batch.follows))
        return chunks

    def _with_images(self, batch: Batch, chunks: Sequence[ScheduledChunk]) -> Batch:
        """Returns the batch with the rows and positions of its images, and the ends of prompts that are read whole."""
        rows = [(chunk.sequence.images, chunk.start, chunk.end) for chunk in chunks]
        return replace(batch, extra_inputs=media_inputs(batch, rows, self._media))

    def _adapters(self, chunks: Sequence[ScheduledChunk]) -> npt.NDArray[np.float32]:
        """Returns the scale of each adapter for each row of a step."""
        default = self._runner.adapters.scales()
        each = [default if chunk.sequence.adapters is None else chunk.sequence.adapters for chunk in chunks]
        return np.repeat(np.array(each), [chunk.end - chunk.start for chunk in chunks], axis=0)

    def _sampling_inputs(self, sampling: Sequence[ScheduledChunk]) -> SamplingInputs:
        """Returns how the output rows are sampled."""
        slots: list[int] = []
        numbers, lengths, masked = [], [], {}
        logits = adjusted = False
        for slot, *_, samples, sequence, _ in sampling:
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
        """Takes the tokens of the oldest step in flight. Tokens after the end of an answer are dropped."""
        step = self._in_flight.popleft()
        for chunk in step.sampling:
            chunk.sequence.in_flight -= chunk.samples
            chunk.sequence.unverified -= (chunk.samples - 1) * step.counts
        try:
            if step.drafts is not None:
                step.verified |= step.drafts.take()
            result = step.pending.wait()
        except Exception as error:  # noqa: BLE001  ends all running requests; reported in their last updates
            self._fail(self._slots.running, error)
            return
        row = 0
        for chunk in step.sampling:
            sequence, row = chunk.sequence, row + chunk.samples
            if sequence.finish_reason:
                continue
            try:
                self._sampled(sequence, result, range(row - chunk.samples, row), step.verified.get(sequence, ()))
            except Exception as error:  # noqa: BLE001  ends this request; reported in its last update
                sequence.end("error", error)
            if sequence.finish_reason and sequence.slot < 0:  # its slot was freed while this step was in flight
                self._slots.end(sequence.id, sequence.finish_reason)

    def _sampled(self, sequence: TokenSequence, result: StepResult, rows: range, draft: Sequence[int]) -> None:
        """Takes the tokens of a sequence's rows, or starts sampling on the host.

        Raises if a row has no valid numbers.
        """
        executor = self._host_work.executor
        if sequence.on_host:
            assert result.logits is not None
            sequence.start_work(executor, logits=result.logits[rows.start : rows.stop], draft=draft)
            return
        sequence.verify(result.sampled(rows, sequence.request.params.logprobs), draft)
        if self._speculation is not None:
            self._speculation.accept(sequence)
        self._slots.updated[sequence] = None
        self._stored.keep_answer(sequence)
        if sequence.request.grammar is not None and not sequence.finish_reason:
            sequence.start_work(executor, token=sequence.ids[-1])

    def _fail(self, sequences: Sequence[TokenSequence], error: Exception) -> None:
        """Fails these sequences after a step error, or all after a device loss.

        Drops stored states that may be wrong.
        """
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
