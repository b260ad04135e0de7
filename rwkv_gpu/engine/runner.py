"""A model that can take steps: its parameters, the states of its sequences, and plans by size. Knows no text."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, Unpack, cast

import numpy as np
import numpy.typing as npt

from ..gguf.file import GGUFFile
from ..gpu.device import Buffer, Device
from ..gpu.expert_cache import expert_caches
from ..gpu.loader import Progress, load_weights
from ..gpu.plan import Plan, Slice
from ..gpu.ready_step import ReadyStep
from ..gpu.submit_queue import StepGroup, SubmitQueue, most_steps
from ..gpu.weight_slots import assign_slots
from ..gpu.weights import BY_NAME, ExpertCache, Weights, upload_together
from ..kernels.tuning import Tuning
from ..models.registry import Contents, Model
from ..ops.adapted import AdaptedOps, LowRank
from ..ops.batch import Batch
from ..ops.kv_format import KV_FORMATS
from ..ops.memory import MAX_SEGMENTS, Scratch
from ..ops.parts import Crossing, Part
from ..ops.sampler_state import GpuSamplerState
from ..ops.sampling import FROM_SLOT
from ..ops.vocabulary import Cache, Choosing
from .adapters import NO_ADAPTERS, Adapters
from .cache.config import CacheConfig, CacheOptions, check_bindings
from .cache.kv import GpuKVCache, PagedKVCache, PageTables, names
from .cache.pager import Copy
from .cache.states import StatePages
from .cache.store import CopyPages, SequenceStore
from .device_sampling import SampledRow, remember
from .fit import placement_of, resident
from .offload import ON_GPU, Offload
from .parameters import parameters_of
from .placement import Placement, cached_experts
from .sampling_params import SamplingParams
from .step_result import PendingStep, SamplingInputs, StepResult

Logits = npt.NDArray[np.float32]
# What a plan gives: logits, the input of the head, values for other parts, or how tokens are chosen where they are.
Output = Literal["logits", "hidden", "crossing"] | Choosing
StateArrays = Mapping[str, npt.NDArray[Any]]
Arrays = dict[str, npt.NDArray[Any]]
NOTHING: Arrays = {}
SAMPLED = ("plain", "any", "masked")  # of `Output`: how tokens are chosen


@dataclass(frozen=True)
class Share:
    """What a runner gets that runs one part of a model, and what it has in common with those of the other parts."""

    part: Part
    tables: PageTables
    store: SequenceStore


class PendingRows(Protocol):
    """Values that leave a part, on their way."""

    def wait(self) -> Arrays:
        """The values by name, [T, ...] each; asked for once."""


class ReadyPart(Protocol):
    """A step of a part that is ready but for its late inputs."""

    def forward(self, late: Arrays) -> PendingRows:
        """Sets it going; it gives the values which leave the part."""

    def sample(self, late: Arrays) -> PendingStep:
        """Sets it going; it is of the last part, which samples."""

    def discard(self) -> None:
        """Forgets it: it will not begin."""


class PartRunner(Protocol):
    """Runs a part of a model, on a GPU or in numpy. Batches are placed; `arrived` has what other parts computed."""

    compile_seconds: float
    asynchronous: bool  # whether it computes while the host goes on

    def warm_up(self) -> Iterator[None]:
        """Gets ready, in pieces, what the first requests would wait for."""

    def ready(self, batch: Batch, sampling: SamplingInputs) -> ReadyPart:
        """Does ahead what can be done before late inputs are known: what arrives, and ids that are to be sampled."""

    def run(self, batch: Batch, what: Output, arrived: Arrays) -> Logits:
        """A step of the last part that gives logits, or the input of the head."""

    def remember(self, slot: int, ids: Sequence[int], params: SamplingParams) -> None:
        """What penalties look back on, and biases."""

    def read_state(self, slot: int) -> StateArrays:
        """What the part has of a sequence, by name."""

    def put_state(self, slot: int, states: StateArrays) -> None:
        """Puts it back, for a sequence that has its place."""

    def copy_pages(self, copies: Sequence[Copy], window: int = 0) -> None:
        """Moves the bytes of pages in the layers of the part that have such a window."""

    def close(self) -> None:
        """Gives back all memory."""


class Runner(Protocol):
    """Takes steps on a GPU or in numpy."""

    model: Model
    vocabulary: int  # token ids that it knows
    slots: int  # sequences that it has room for
    chunk_size: int  # rows that a step may have
    context: int | None  # positions that a sequence may have, where there is a limit
    cache_config: CacheConfig
    store: SequenceStore
    adapters: Adapters
    page_and_state_bytes: tuple[int, int]  # of all layers

    @property
    def compile_seconds(self) -> float:
        """Spent so far on recording plans and compiling their shaders."""

    @property
    def ahead(self) -> int:
        """Steps under way that keep it busy: more make nothing faster."""

    def submit(self, batch: Batch, sampling: SamplingInputs) -> PendingStep:
        """Sets a step going that samples, and that may feed what was sampled before. The batch is a placed one."""

    def warm_up(self) -> Iterator[None]:
        """Gets ready, in pieces, what the first requests would wait for."""

    def remember(self, slot: int, ids: Sequence[int], params: SamplingParams) -> None:
        """What penalties look back on and what biases there are, before the first draw of a sequence."""

    def prepare(self, batch: Batch) -> Batch:
        """The batch with a place for all that it writes; raises CacheFull, and takes nothing, where there is none."""

    def step(self, batch: Batch) -> Logits:
        """The logits of the rows that the batch asks for, [R, V]; the states move on."""

    def hidden(self, batch: Batch) -> Logits:
        """The same, but what the head would make logits of, [R, D]"""

    def fitted(self, length: int, states: StateArrays) -> StateArrays | None:
        """What any runner of this model has read of a sequence of that length, as `write_state` takes it; else None."""

    def read_state(self, slot: int) -> StateArrays:
        """What a sequence has come to, by name."""

    def write_state(self, slot: int, length: int, states: StateArrays) -> None:
        """Puts a sequence where `read_state` was taken."""

    def close(self) -> None:
        """Gives back all memory."""


class GpuRunner:
    """Steps by recorded plans, one for each power of two of rows. With a `share`, those of one part of a model."""

    asynchronous = True

    def __init__(
        self,
        device: Device,
        file: GGUFFile,
        model: Model,
        *,
        chunk_size: int = 512,
        tuning: Tuning | None = None,
        layers_per_submit: int = 0,
        progress: Progress | None = None,
        adapters: Adapters = NO_ADAPTERS,
        offload: Offload = ON_GPU,
        share: Share | None = None,
        **options: Unpack[CacheOptions],
    ) -> None:
        self.adapters = adapters
        self._part = None if share is None else share.part
        self.contents: Contents = share.part if share is not None else model
        self._factors, values = factors_of(adapters, model, self._part)
        self.cache_config = config = CacheConfig.of(model, chunk_size=chunk_size, **options)
        check_bindings(device, self.contents, config)
        if share is None:
            placement = placement_of(device, file, model, config, chunk_size, offload)
        else:  # all of a part lies on its device
            placement = Placement(parameters_of(file, self.contents))
        self.fit = resident(device, placement, self.contents, config, offload)
        if share is None:  # of parts, whoever makes them has checked all together
            self.fit.check()  # before anything is allocated
        self.device = device
        self.model = model
        self.vocabulary = model.vocabulary
        self.slots = config.slots
        self.chunk_size = chunk_size
        if tuning is None:
            from ..ops.self_test import tuning_for  # with all kernels: a model in numpy starts sooner without

            tuning = tuning_for(device)
        self.tuning = tuning
        self.weights = load_weights(device, file, placement.parameters, progress)
        upload_factors(device, self.weights, values)
        self._slots = assign_slots(device, self.weights, placement.parameters)
        self.expert_caches: list[ExpertCache] = []
        if placement.slots:
            experts = cached_experts(placement.parameters)
            self.expert_caches = expert_caches(device, self.weights, experts, placement.slots)
        self._cached_rows = placement.slots // max(1, placement.used)  # of a step whose experts all have slots
        self._cached_weights = self.weights.through(self.expert_caches)
        self._states: dict[str, Buffer] = {}
        for state in self.contents.states:
            self._states[state.name] = device.buffer(config.state_bytes(state), "state")
        caches = self.contents.caches
        self._caches = GpuKVCache(device, caches, config, None if share is None else share.tables)
        self.copy_pages: CopyPages = self._caches.copy_pages
        self.store = store_of(model, config, self._caches, self.copy_pages) if share is None else share.store
        self.page_and_state_bytes = config.each(model.caches, model.states)
        self.context = config.context if caches else None
        self._reads_apart = share is None and not model.states  # whether rows of a sequence are computed as in decode
        self.sampler_state = GpuSamplerState(device, config.slots, model.vocabulary)
        self.queue = SubmitQueue(device, config.look_ahead, layers_per_submit)
        self._scratch = Scratch(device)
        self.compile_seconds = 0.0
        self._plans: dict[tuple[int, int, bool, int, bool, Output], Plan] = {}

    def prepare(self, batch: Batch) -> Batch:
        """The batch with a place for all that it writes; what a plan can run."""
        return self.store.prepare(batch)

    def ready(self, batch: Batch, sampling: SamplingInputs) -> ReadyPart:
        """A step of this part, ready but for what arrives, and the ids that are to be sampled."""
        part = self._part
        assert part is not None, "a whole model waits for no other part"
        what: Output = "crossing"
        inputs, outputs = self._adapted(batch).arrays(), [(one.name, batch.rows) for one in part.leaves]
        if part.last:
            what, inputs, outputs = self._sampled(batch, sampling)
        plan, late = self.plan_for(batch, what), [one.name for one in part.arrives]
        if (batch.ids & FROM_SLOT).any() and plan.reads("ids"):
            late.append("ids")
        counts = batch.rows, len(batch.segments), len(batch.outputs) if part.last else 0
        step = self.queue.ready(plan, counts, inputs, outputs, late)
        return GpuReadyPart(self.queue, step, part, batch.rows, counts[2], sampling.logits)

    def submit(self, batch: Batch, sampling: SamplingInputs) -> PendingStep:
        at_once = sampling.logits or not batch.single
        every = len(batch.outputs) == batch.rows <= MAX_SEGMENTS
        verifies = every and not batch.single and self._reads_apart
        batch = batch.apart() if verifies else batch
        how, inputs, outputs = self._sampled(batch, sampling)
        plan = self.plan_for(batch, how, shared_pages=verifies)
        counts = batch.rows, len(batch.segments), len(batch.outputs)
        group, step = self.queue.add(plan, counts, inputs, outputs, at_once=at_once)
        return GpuPendingStep(group, step, len(batch.outputs), sampling.logits)

    def _sampled(self, batch: Batch, sampling: SamplingInputs) -> tuple[Output, Arrays, list[tuple[str, int]]]:
        """Of a step that samples: how, what it reads, and what is read back."""
        how, rows = sampling.how, len(batch.outputs)
        inputs = self._adapted(batch).arrays() | {"draws": sampling.rows}
        if sampling.masks is not None:
            inputs["masks"] = sampling.masks
        # One row at least, so that there is something to wait for.
        outputs = [("chosen", max(1, rows))] + [("logits", rows)] * sampling.logits
        answers = batch.single or rows == batch.rows  # steps with prompts are recorded once, for all that rows may ask
        return how if answers or how == "masked" else "any", inputs, outputs

    @property
    def ahead(self) -> int:
        return self.queue.ahead

    def run_ahead(self, steps: int) -> None:
        """Lets so many be under way, and no more than there is room for."""
        self.queue.pace(min(steps, self.cache_config.look_ahead))

    def remember(self, slot: int, ids: Sequence[int], params: SamplingParams) -> None:
        remember(self.sampler_state, slot, ids, params)

    def step(self, batch: Batch) -> Logits:
        return self.run(self.prepare(batch), "logits")

    def hidden(self, batch: Batch) -> Logits:
        return self.run(self.prepare(batch), "hidden")

    def run(self, batch: Batch, what: Output, arrived: Arrays = NOTHING) -> Logits:
        """A step of a placed batch that gives logits, or the input of the head."""
        plan = self.plan_for(batch, what)
        counts = len(batch.segments), len(batch.outputs)
        trace = self.queue.trace
        stamps = None if trace is None else trace.next()
        inputs = self._adapted(batch).arrays() | arrived
        plan.run(batch.rows, inputs, *counts, self.queue.layers_per_submit, stamps)
        if not batch.outputs:
            return np.zeros((0, self.vocabulary), np.float32)
        return plan.read(what, len(batch.outputs))

    def _adapted(self, batch: Batch) -> Batch:
        return with_adapters(batch, self.adapters) if self._factors else batch

    def plan_for(self, batch: Batch, what: Output = "logits", *, shared_pages: bool = False) -> Plan:
        """The smallest plan that takes the batch, recorded at its first use. See `Recorder` for `shared_pages`."""
        rows = bucket(batch.rows, self.chunk_size)
        outputs = 1 if what == "crossing" else bucket(len(batch.outputs), rows)
        if what in SAMPLED:
            outputs = outputs_for(rows, outputs, self.slots)
        attends = self.context is not None
        single = batch.single and (attends or self.tuning.state_lanes_per_row > 0)  # whether such a plan is another
        key = rows, outputs, single, self._caches.plan_pages(batch) if attends else 0, shared_pages, what
        plan = self._plans.get(key)
        if plan is None:
            began = time.perf_counter()
            plan = self._plans[key] = self._record(*key)
            self.compile_seconds += time.perf_counter() - began
        return plan

    def warm_up(self) -> Iterator[None]:
        """Records a plan at a time that requests will need, so that none of them waits for it. Grammars come last."""
        answers: tuple[Output, ...] = ("any", "plain")
        prompts: tuple[Output, ...] = ("any",)
        grammars: tuple[Output, ...] = ("masked",)
        if self._part is not None and not self._part.last:
            answers, prompts, grammars = ("crossing",), ("crossing",), ()
        for with_prompt, single in ((prompts, answers), (grammars, grammars)):
            for batch in common_steps(self.slots, self.chunk_size):
                for what in single if batch.single else with_prompt:
                    recorded = len(self._plans)
                    self.plan_for(batch, what)
                    if len(self._plans) > recorded:
                        yield

    def retune(self, tuning: Tuning) -> None:
        """Other constants for the plans to come; those that are recorded are forgotten."""
        self.tuning = tuning
        self._plans.clear()

    def _record(self, rows: int, outputs: int, single: bool, pages: int, shared_pages: bool, what: Output) -> Plan:
        states = {name: Slice(buffer, 0, buffer.nbytes) for name, buffer in self._states.items()}
        from ..ops.recorder import Recorder  # with all passes: a model in numpy starts sooner without

        recorder = Recorder(
            self.device,
            self._cached_weights if rows <= self._cached_rows else self.weights,
            rows,
            self._scratch,
            self.tuning,
            states,
            max_segments=min(rows, rows if shared_pages else self.slots, MAX_SEGMENTS),
            max_outputs=outputs,
            caches=self._caches.placed(pages),
            single=single,
            shared_pages=shared_pages,
            sampler_state=None if what in ("logits", "hidden", "crossing") else self.sampler_state,
            slots=self._slots,
        )
        ids = recorder.input("ids", np.uint32, (rows,))
        scales = recorder.input("adapters", np.float32, (rows, self.adapters.rank)) if self._factors else None
        adapted = partial(AdaptedOps, factors=self._factors, scales=scales) if self._factors else unadapted
        function = "hidden" if what == "hidden" else "forward"
        if self._part is None:
            logits = getattr(self.model, function)(adapted(recorder), ids)
        else:
            arrived = {one.name: recorder.input(one.name, one.dtype, (rows, *one.shape)) for one in self._part.arrives}
            logits, leaving = self._part.run(recorder, function, ids, arrived, adapted)
            if not self._part.last:
                return recorder.finish(leaving)
        if what in ("logits", "hidden", "crossing"):
            return recorder.finish({what: logits})
        chosen = recorder.sample(logits, how=cast(Choosing, what))
        return recorder.finish(
            {"chosen": chosen, "logits": logits}, most_steps(self.cache_config.look_ahead), each=["chosen"]
        )

    def fitted(self, length: int, states: StateArrays) -> StateArrays | None:
        return fitted(self.model, self.cache_config, length, states)

    def read_state(self, slot: int) -> StateArrays:
        arrays = {}
        for state in self.contents.states:
            nbytes = 4 * int(np.prod(state.shape))
            data = self.device.read(self._states[state.name], nbytes, self.store.state(slot) * nbytes)
            arrays[state.name] = np.frombuffer(data, np.float32).reshape(state.shape)
        return arrays | self._caches.read(slot)

    def write_state(self, slot: int, length: int, states: StateArrays) -> None:
        self.store.begin(slot, length)
        self.put_state(slot, states)

    def put_state(self, slot: int, states: StateArrays) -> None:
        """The state of a sequence that has its place."""
        for state in self.contents.states:
            array = states[state.name].astype(np.float32)
            self.device.write(self._states[state.name], array, self.store.state(slot) * array.nbytes)
        self._caches.write(slot, states)

    def close(self) -> None:
        self.device.close()


@dataclass(slots=True)
class GpuPendingStep:
    """A step on its way back from the GPU."""

    group: StepGroup
    step: int  # of the group
    rows: int
    logits: bool

    def wait(self) -> StepResult:
        data = self.group.wait(self.step)
        logits = np.frombuffer(data, np.float32)[4 * self.rows :].reshape(self.rows, -1) if self.logits else None
        return StepResult(SampledRow.rows(data, self.rows), logits)


@dataclass(slots=True)
class GpuReadyPart:
    """A step of a part of a model that is ready but for its late inputs."""

    queue: SubmitQueue
    step: ReadyStep
    part: Part
    rows: int
    outputs: int
    logits: bool

    def forward(self, late: Arrays) -> PendingRows:
        return GpuPendingRows(self.queue.begin(self.step, late), 0, self.part.leaves, self.rows)

    def sample(self, late: Arrays) -> PendingStep:
        return GpuPendingStep(self.queue.begin(self.step, late), 0, self.outputs, self.logits)

    def discard(self) -> None:
        self.queue.discard(self.step)


@dataclass(slots=True)
class GpuPendingRows:
    """Values that leave a part, on their way back from the GPU."""

    group: StepGroup
    step: int  # of the group
    leaves: Sequence[Crossing]
    rows: int

    def wait(self) -> Arrays:
        data, at, arrays = self.group.wait(self.step), 0, {}
        for crossing in self.leaves:
            shape = (self.rows, *crossing.shape)
            arrays[crossing.name] = np.frombuffer(data, crossing.dtype, math.prod(shape), at).reshape(shape)
            at += arrays[crossing.name].nbytes
        return arrays


def unadapted(g: Any) -> Any:
    """The vocabulary of a model without adapters."""
    return g


def upload_factors(device: Device, weights: Weights, values: Arrays) -> None:
    """Factors of adapters to the device; those of one block lie together, so that one dispatch can read several."""
    blocks: dict[str, Arrays] = {}
    for name, array in values.items():
        blocks.setdefault(".".join(name.split(".")[:2]), {})[name] = array
    for block in blocks.values():
        tensors = {name: (BY_NAME["F32"], array.view(np.uint8), array.shape) for name, array in block.items()}
        for name, weight in upload_together(device, tensors).items():
            weights.add(name, weight)


def factors_of(adapters: Adapters, model: Model, part: Part | None) -> tuple[dict[str, LowRank], Arrays]:
    """The factors of adapters by the name of each weight, and the values of those that a part reads."""
    factors, values = adapters.factors(model)
    return factors, {name: array for name, array in values.items() if part is None or name in part.used}


def with_adapters(batch: Batch, adapters: Adapters) -> Batch:
    """A batch whose rows want what they were given, or each adapter as it was loaded."""
    if batch.adapters is not None:
        return batch
    return replace(batch, adapters=np.tile(adapters.scales(), (batch.rows, 1)))


def store_of(model: Model, config: CacheConfig, caches: PagedKVCache | PageTables, copy: CopyPages) -> SequenceStore:
    """The pages and states of a model's sequences."""
    states = StatePages(config.states, config.history, config.apart) if model.states else None
    return SequenceStore(caches.pager if model.caches else None, states, copy, caches.windows)


def fitted(model: Model, config: CacheConfig, length: int, states: StateArrays) -> StateArrays | None:
    """The arrays of a sequence of that length in the shapes that a runner keeps; None if they are of another model.

    Of layers with a window, those that were read with another context may hold all positions, or the last ones only.
    """
    shapes: dict[str, tuple[int, ...]] = {state.name: state.shape for state in model.states}
    caches = {name: cache for cache in model.caches for name in names(cache)}
    shapes |= {name: (config.kept(cache, length), *config.shape(cache)[2:]) for name, cache in caches.items()}
    if states.keys() != shapes.keys():
        return None
    arrays = {}
    for name, array in states.items():
        shape = shapes[name]
        if name in caches:
            array = _as_stored(array, caches[name], config)
        if name in caches and (window := caches[name].window) and len(array) in (length, min(length, window - 1)):
            rows = np.zeros((shape[0], *array.shape[1:]), array.dtype)
            count = min(len(array), len(rows))
            rows[len(rows) - count :] = array[len(array) - count :]
            array = rows
        if array.shape != shape:
            return None
        arrays[name] = array
    return arrays


def _as_stored(array: npt.NDArray[Any], cache: Cache, config: CacheConfig) -> npt.NDArray[Any]:
    """Keys or values that were saved in one format in that of a runner; those of no format stay as they are."""
    wanted = config.format_of(cache)
    formats = [f for f in KV_FORMATS.values() if array.dtype == f.dtype and array.shape[-1] == f.width(cache.size)]
    if not formats or formats[0] is wanted:
        return array
    return wanted.store(formats[0].load(array, cache.size))


def bucket(count: int, most: int) -> int:
    """The power of two that `count` fits in, but never more than `most`."""
    return min(most, 1 << max(0, count - 1).bit_length())


def outputs_for(rows: int, outputs: int, sequences: int) -> int:
    """Output rows of a plan. With prompts 1, 8, 64 ...: few sizes, as all wait while a plan is recorded."""
    if outputs == rows:
        return outputs
    coarse = 1 << 3 * math.ceil((outputs - 1).bit_length() / 3)
    return max(outputs, min(coarse, bucket(sequences, rows)))


def common_steps(sequences: int, rows: int) -> Iterator[Batch]:
    """Steps of each size that requests come to: a prompt, answers, and prompts beside answers."""
    sizes = [1 << n for n in range(max(0, rows - 1).bit_length())] + [rows]
    for size in sizes[:0:-1]:
        yield Batch.of([(0, 0, [0] * size)])
    for size in sizes:
        yield Batch.of([(slot, 1, [0]) for slot in range(min(size, sequences))])
    for several in (2, 9, 65):  # see `outputs_for`
        for size in sizes[::-1]:
            if several < size and several <= sequences:
                yield Batch.of([(slot, 0, [0] * (1 if slot else size - several + 1)) for slot in range(several)])


def prefill(
    runner: Runner,
    ids: Sequence[int],
    *,
    slot: int = 0,
    start: int = 0,
    chunk_size: int | None = None,
    every: bool = False,
) -> Logits:
    """Feeds a sequence in chunks: the logits after its last token, or of every position. [R, V]"""
    size = min(chunk_size or runner.chunk_size, runner.chunk_size)
    logits = []
    for at in range(0, len(ids), size):
        piece = runner.step(Batch.of([(slot, start + at, ids[at : at + size])], every=every))
        if every or at + size >= len(ids):
            logits.append(piece)
    return np.concatenate(logits)
