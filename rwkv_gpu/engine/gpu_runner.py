"""Runs the steps of a model, or of one part of it, on a GPU: weights, states, pages, and plans by size."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Unpack, cast

import numpy as np

from ..gguf.file import GGUFFile
from ..gpu.device import Buffer, Device
from ..gpu.expert_cache import expert_caches
from ..gpu.loader import Progress, load_weights
from ..gpu.plan import Plan, Slice
from ..gpu.ready_step import ReadyStep
from ..gpu.submit_queue import StepGroup, SubmitQueue, max_steps
from ..gpu.typed_errors import TypedErrors
from ..gpu.weight_slots import assign_slots
from ..gpu.weights import ExpertCache
from ..kernels.tuning import Tuning
from ..models.registry import Model
from ..ops.adapted import AdaptedOps
from ..ops.batch import Batch
from ..ops.media import with_media
from ..ops.memory import MAX_SEGMENTS, Scratch
from ..ops.parts import Part, SharedValue
from ..ops.sampler_state import GpuSamplerState
from ..ops.sampling import FROM_SLOT
from ..ops.vocabulary import Choosing
from .adapters import NO_ADAPTERS, Adapters, upload_factors
from .cache.config import CacheOptions, within_bindings
from .cache.kv import GpuKVCache
from .fit import Companions, factor_bytes, placement_of, resident, slot_rows_bytes
from .offload import ON_GPU, Offload
from .parameters import parameters_of
from .placement import Placement, cached_experts
from .plan_sizes import bucket, common_steps, outputs_for
from .runner import (
    NOTHING,
    Arrays,
    DraftOutput,
    Logits,
    Output,
    PartRunner,
    PendingRows,
    ReadyPart,
    Share,
    StateArrays,
    unadapted,
)
from .step_result import PendingStep, SampledRow, SamplingInputs, StepResult

TOWER_PARTS = 9  # number of submits of a tower's step, between which other steps run
SAMPLED = ("plain", "any", "masked")  # values of `Output` that sample tokens
InputWidths = tuple[tuple[str, int], ...]  # names and widths of further inputs of a step


class Size(NamedTuple):
    """The size of the batches that a plan takes."""

    rows: int
    outputs: int  # output rows
    single: bool  # whether each sequence has one row
    pages: int  # of a sequence
    shared_pages: bool
    follows: bool
    what: Output
    extra_inputs: InputWidths


class GpuRunner(PartRunner):
    """Runs steps as recorded plans, one for each power of two of rows. With a `share`, runs one part of a model.

    Leaves device memory free for a model that will `draft`, and for a `projector` of that many bytes.
    """

    asynchronous = True
    compile_seconds = 0.0
    sampler_state: GpuSamplerState

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
        draft: tuple[GGUFFile, Model] | None = None,
        projector: int = 0,
        **options: Unpack[CacheOptions],
    ) -> None:
        super().__init__(model, adapters, chunk_size, share, options)
        self.cache_config = config = within_bindings(device, self.contents, self.cache_config, whole=share is None)
        factors = self._join_adapters()
        extra = factor_bytes(device, factors)
        if share is None:
            reserved = extra + Companions(draft=draft).drafting(device, config) + projector
            placement = placement_of(device, file, model, config, chunk_size, offload, reserved)
        else:  # a part lies completely on its device
            placement = Placement(parameters_of(file, self.contents))
        self.fit = replace(resident(device, placement, self.contents, config, offload), adapters=extra)
        if share is None:  # parts of a model are checked together by their creator
            self.fit.check()  # before anything is allocated
        self.device = device
        if tuning is None:
            from ..ops.self_test import tuning_for  # imports all kernels, which a model in numpy does not need

            tuning = tuning_for(device)
        self.tuning = tuning
        self._capabilities = device.capabilities  # the capabilities that all recorded plans assume
        self.weights = load_weights(device, file, placement.parameters, progress)
        upload_factors(device, self.weights, factors)
        self._slots = assign_slots(device, self.weights, placement.parameters)
        self.expert_caches: list[ExpertCache] = []
        if placement.slots:
            experts = cached_experts(placement.parameters)
            self.expert_caches = expert_caches(device, self.weights, experts, placement.slots)
        # Maximum rows of a step whose experts certainly fit in the expert cache
        self._cached_rows = placement.slots // max(1, placement.used)
        self._cached_weights = self.weights.through(self.expert_caches)
        self._states: dict[str, Buffer] = {}
        for state in self.contents.states:
            self._states[state.name] = device.buffer(config.state_bytes(state), "state")
        rows = slot_rows_bytes(self.contents, config)
        self._slot_rows = {name: device.buffer(nbytes, "state") for name, nbytes in rows.items()}
        self._caches = GpuKVCache(device, self.contents.caches, config, None if share is None else share.tables)
        self._place(self._caches)
        self._reads_apart = share is None and not model.states  # whether prompt rows are computed exactly as in decode
        self.sampler_state = GpuSamplerState(device, config.slots, model.vocabulary, drafts=self._drafts)
        self.queue = SubmitQueue(device, config.look_ahead, layers_per_submit)
        self._scratch = Scratch(device)
        self._plans: dict[Size, Plan] = {}
        self._plan_of: dict[Size, Plan] = {}  # the plan for each actual number of rows and outputs

    @TypedErrors("preparing a step")
    def ready(self, batch: Batch, sampling: SamplingInputs) -> ReadyPart:
        """Prepares a step of this part, except for its late inputs and the ids to be sampled."""
        part = self._part
        assert part is not None, "a whole model waits for no other part"
        what: Output = "crossing"
        inputs, outputs = self._inputs(batch), [(one.name, batch.rows) for one in part.leaves]
        if part.last:
            what, inputs, outputs = self._sampled(batch, sampling)
        plan, late = self.plan_for(batch, what), [one.name for one in part.arrives]
        if (batch.ids & FROM_SLOT).any() and plan.reads("ids"):
            late.append("ids")
        counts = batch.rows, len(batch.segments), len(batch.outputs) if part.last else 0
        step = self.queue.ready(plan, counts, inputs, outputs, late)
        return GpuReadyPart(self.queue, step, part, batch.rows, counts[2], sampling.logits)

    def submit(self, batch: Batch, sampling: SamplingInputs) -> PendingStep:
        rows, picked, single = batch.rows, len(batch.outputs), batch.single
        verifies = not single and picked == rows <= MAX_SEGMENTS and self._reads_apart
        if verifies:
            batch = batch.split_rows()
        how, inputs, outputs = self._sampled(batch, sampling)
        plan = self.plan_for(batch, how, shared_pages=verifies)
        counts = rows, len(batch.segments), picked
        group, step = self.queue.add(plan, counts, inputs, outputs, at_once=sampling.logits or not single)
        return GpuPendingStep(group, step, picked, sampling.logits)

    def draft(self, batch: Batch, sampling: SamplingInputs, number: int = 0) -> PendingStep:
        plan = self.plan_for(batch, DraftOutput("any" if sampling.how == "any" else "plain", self._link(number)))
        inputs, picked = {**self._inputs(batch), "draws": sampling.draws}, len(batch.outputs)
        outputs = [("chosen", picked)] + [("logits", picked)] * sampling.logits
        group, step = self.queue.add(plan, (batch.rows, len(batch.segments), picked), inputs, outputs)
        return GpuPendingStep(group, step, picked, sampling.logits)

    def forget_row(self, slot: int, length: int) -> None:
        if self.head is not None and self.head.rows is not None:
            count, width = self.head.rows.shape
            at = 4 * width * (slot * count + (length - 1) % count)
            self.device.write(self._slot_rows[self.head.rows.name], np.zeros(width, np.float32), at)

    def _sampled(self, batch: Batch, sampling: SamplingInputs) -> tuple[Output, Arrays, list[tuple[str, int]]]:
        """Returns the kind of output of a step that samples, its inputs, and the buffers to read back."""
        how, rows = sampling.how, len(batch.outputs)
        inputs = {**self._inputs(batch), "draws": sampling.draws}
        if sampling.masks is not None:
            inputs["masks"] = sampling.masks
        # At least one row, so that there is something to wait for.
        outputs = [("chosen", max(1, rows))]
        if sampling.logits:
            outputs.append(("logits", rows))
        if how == "plain" and rows < batch.rows and not batch.single:
            how = "any"  # steps with prompts are recorded once, for all kinds of sampling
        return how, inputs, outputs

    @property
    def ahead(self) -> int:
        return self.queue.ahead

    @property
    def follows(self) -> bool:
        return self._part is None and self.head is not None and self.head.extra_inputs is None

    def run_ahead(self, steps: int) -> None:
        """Limits in-flight steps to `steps`, or to what the buffers allow."""
        self.queue.pace(min(steps, self.cache_config.look_ahead))

    @TypedErrors("running a step")
    def run(self, batch: Batch, what: Output, arrived: Arrays = NOTHING) -> Logits:
        """Runs a placed batch and returns logits, or the input of the head."""
        plan = self.plan_for(batch, what)
        counts = len(batch.segments), len(batch.outputs)
        trace = self.queue.trace
        stamps = None if trace is None else trace.next()
        inputs = {**self._inputs(batch), **arrived}
        plan.run(batch.rows, inputs, *counts, self.queue.layers_per_submit, stamps)
        if not batch.outputs:
            return np.zeros((0, self.vocabulary), np.float32)
        return plan.read(str(what), len(batch.outputs))

    def features(self, batch: Batch) -> Iterator[Arrays | None]:
        batch = self.prepare(batch)
        plan = self.plan_for(batch, "features")
        plan.step.write(batch.rows, self._inputs(batch), len(batch.segments), len(batch.outputs))
        for recording in plan.record_steps(1, -(-len(plan.splits) // TOWER_PARTS), None, ()):
            self.device.submit([recording.finish()])
            yield None
        yield {name: plan.read(name, len(batch.outputs)) for name in plan.outputs}

    def plan_for(self, batch: Batch, what: Output = "logits", *, shared_pages: bool = False) -> Plan:
        """Returns the smallest plan that takes the batch, recorded at its first use.

        `Recorder` explains `shared_pages`.
        """
        if not batch.single:
            self._follow_device()
        pages = self._caches.plan_pages(batch)
        inputs = tuple((name, rows.shape[1]) for name, rows in batch.extra_inputs.items()) if batch.extra_inputs else ()
        size = Size(batch.rows, len(batch.outputs), batch.single, pages, shared_pages, batch.follows, what, inputs)
        plan = self._plan_of.get(size)
        if plan is None:
            plan = self._plan_of[size] = self._plan_for(size)
        return plan

    @TypedErrors("preparing a step")
    def _plan_for(self, size: Size) -> Plan:
        """Returns the plan for batches of this size."""
        rows, outputs, what = size.rows, size.outputs, size.what
        assert rows <= self.chunk_size, f"a step has at most {self.chunk_size} rows, this one {rows}"
        rows = bucket(rows, self.chunk_size)
        outputs = 1 if what == "crossing" else bucket(outputs, rows)
        if what in SAMPLED:
            outputs = outputs_for(rows, outputs, self.slots)
        elif isinstance(what, DraftOutput):
            outputs = rows
        # Whether batches with one row per sequence use a different plan.
        single = size.single and (bool(self.contents.caches) or self.tuning.recurrence.state_lanes_per_row > 0)
        follows = self.follows if isinstance(what, DraftOutput) else size.follows
        key = size._replace(rows=rows, outputs=outputs, single=single, follows=follows)
        plan = self._plans.get(key)
        if plan is None:
            began = time.perf_counter()
            plan = self._plans[key] = self._record(key)
            plan.compile()
            self.compile_seconds += time.perf_counter() - began
        return plan

    def warm_up(self) -> Iterator[None]:
        """Records the plans that requests will need, one at a time; those with grammars last."""
        answers: tuple[Output, ...] = ("any", "plain")
        prompts: tuple[Output, ...] = ("any",)
        grammars: tuple[Output, ...] = ("masked",)
        head, drafts = self.head, list[Output]()
        if head is not None and self._drafts:
            drafts += [DraftOutput(how, link) for how in ("plain", "any") for link in range(head.links)]
            if head.mask is not None:  # a head with a mask drafts in steps of several rows
                yield from self._warm_up_blocks(drafts)
                drafts.clear()
        if self._part is not None and not self._part.last:
            answers, prompts, grammars = ("crossing",), ("crossing",), ()
        for with_prompt, single in ((prompts, answers), (grammars, grammars)):
            for batch in common_steps(self.slots, self.chunk_size):
                for what in (*drafts, *single) if batch.single else with_prompt:
                    recorded = len(self._plans)
                    self.plan_for(batch, what)
                    if len(self._plans) > recorded:
                        yield

    def _warm_up_blocks(self, drafts: Sequence[Output]) -> Iterator[None]:
        """Records the plans of steps that draft a block of one sequence."""
        rows = 2
        while rows < 2 * (1 + self._drafts):
            for what in drafts:
                self.plan_for(Batch.of([(0, 0, [0] * min(rows, self.chunk_size))]), what)
                yield
            rows *= 2

    def _follow_device(self) -> None:
        """Retunes if a trial of the driver has ended and the device's matrix units may be used.

        Called before prompts, where a pause for compiling matters least.
        """
        self.device.apply_trial_result()
        if self._capabilities is not self.device.capabilities:
            from ..ops.self_test import checked_tuning

            self._capabilities = self.device.capabilities
            self.retune(checked_tuning(self.device, self.tuning))

    def retune(self, tuning: Tuning) -> None:
        """Uses other constants from now on; drops all recorded plans."""
        self.tuning = tuning
        self._plans.clear()
        self._plan_of.clear()

    def _record(self, size: Size) -> Plan:
        rows, outputs, single, pages, shared_pages, follows, what, extra_inputs = size
        states = {name: Slice(buffer, 0, buffer.nbytes) for name, buffer in (self._states | self._slot_rows).items()}
        from ..ops.recorder import Recorder  # imports all passes, which a model in numpy does not need

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
            follows=follows,
            sampler_state=self.sampler_state if what in SAMPLED or isinstance(what, DraftOutput) else None,
            slots=self._slots,
            state_type=self.cache_config.state_type,
        )
        ids = recorder.input("ids", np.uint32, (rows,))
        scales = recorder.input("adapters", np.float32, (rows, self.adapters.rank)) if self._factors else None
        adapted = partial(AdaptedOps, factors=self._factors, scales=scales) if self._factors else unadapted
        function = what if what in ("hidden", "features") else "forward"
        if self._part is None:
            for name, width in extra_inputs:
                recorder.input(name, np.float32, (rows, width))
            g = with_media(adapted(recorder), dict(extra_inputs))
            link = [what.link] if isinstance(what, DraftOutput) else []
            logits = getattr(self.model, "draft" if link else function)(g, ids, *link)
        else:
            arrived = {one.name: recorder.input(one.name, one.dtype, (rows, *one.shape)) for one in self._part.arrives}
            logits, leaving = self._part.run(recorder, function, ids, arrived, adapted)
            if not self._part.last:
                return recorder.finish(leaving)
        if what == "features":
            return recorder.finish(logits)
        if what in ("logits", "hidden", "crossing"):
            return recorder.finish({what: logits})
        chosen = recorder.sample(logits, how=what.how if isinstance(what, DraftOutput) else cast(Choosing, what))
        if follows and what in SAMPLED:
            recorder.accept(ids, chosen)
        return recorder.finish(
            {"chosen": chosen, "logits": logits}, max_steps(self.cache_config.look_ahead), each=["chosen"]
        )

    @TypedErrors("reading a state")
    def read_state(self, slot: int) -> StateArrays:
        arrays = {}
        for state in self.contents.states:
            nbytes, dtype = state.nbytes(self.cache_config.state_type), state.dtype(self.cache_config.state_type)
            data = self.device.read(self._states[state.name], nbytes, self.store.state(slot) * nbytes)
            arrays[state.name] = np.frombuffer(data, dtype).reshape(state.shape).astype(np.float32)
        return arrays | self._caches.read(slot)

    @TypedErrors("writing a state")
    def put_state(self, slot: int, states: StateArrays) -> None:
        """Writes the state of a sequence that has a place."""
        for state in self.contents.states:
            array = states[state.name].astype(state.dtype(self.cache_config.state_type))
            self.device.write(self._states[state.name], array, self.store.state(slot) * array.nbytes)
        self._caches.write(slot, states)

    def close(self) -> None:
        self.device.close()


@dataclass(slots=True)
class GpuPendingStep:
    """A submitted step whose result has not been read back yet."""

    group: StepGroup
    step: int  # number within its group of submits
    rows: int
    logits: bool

    def wait(self) -> StepResult:
        data = self.group.wait(self.step)
        logits = np.frombuffer(data, np.float32)[4 * self.rows :].reshape(self.rows, -1) if self.logits else None
        return StepResult(SampledRow.rows(data, self.rows), logits)


@dataclass(slots=True)
class GpuReadyPart:
    """A step of a part of a model, prepared except for its late inputs."""

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
    """Output values of a part that are being read back."""

    group: StepGroup
    step: int  # number within its group of submits
    leaves: Sequence[SharedValue]
    rows: int

    def wait(self) -> Arrays:
        data, at, arrays = self.group.wait(self.step), 0, {}
        for crossing in self.leaves:
            shape = (self.rows, *crossing.shape)
            arrays[crossing.name] = np.frombuffer(data, crossing.dtype, math.prod(shape), at).reshape(shape)
            at += arrays[crossing.name].nbytes
        return arrays
