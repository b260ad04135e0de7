"""A runner for one model on several devices: its parts run in sequence, with rows passed through the host.

Each device has only the weights, states and pages of its layers. The pages and states of a sequence are chosen once for
all parts, so stored prefixes, forks, saved states and preemption work as on one device.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from ..models.registry import Model
from ..ops.adapted import AdaptedOps
from ..ops.batch import Batch, BatchArrays
from ..ops.parts import Part
from ..ops.sampling import DRAW, FROM_SLOT, Reason
from .adapters import NO_ADAPTERS, Adapters
from .cache.config import CacheOptions
from .cache.kv import PageTables
from .cache.pager import Copy
from .clocks import Clocks
from .gpu_runner import GpuRunner
from .runner import (
    NOTHING,
    Arrays,
    Logits,
    Output,
    PartRunner,
    PendingRows,
    ReadyPart,
    Runner,
    Share,
    StateArrays,
    store_of,
    unadapted,
)
from .sampling_params import SamplingParams
from .step_result import PendingStep, SamplingInputs, StepResult

SKIPPED = int(Reason.SKIPPED)
NOT_SAMPLED = SamplingInputs.of(np.zeros(0, DRAW))
MakePart = Callable[[Share], PartRunner]  # makes a GpuRunner or HostRunner for a share


def parts_of(model: Model, starts: Sequence[int], adapters: Adapters = NO_ADAPTERS) -> list[Part]:
    """Splits a model before these layers; adapter factors stay with their matrices."""
    from ..ops.cut import cut  # imports all nodes, which a model on one device may not need

    factors, _ = adapters.factors(model)
    if not factors:
        return cut(model, starts, unadapted)
    return cut(model, starts, lambda g: AdaptedOps(g, factors, g.input("adapters", np.float32, (adapters.rank,))))


class SplitStep:
    """A step that the parts run one after another. Wait for its result once."""

    def __init__(self, runner: "SplitRunner", batch: Batch, sampling: SamplingInputs) -> None:
        self._runner = runner
        # Rows whose token the previous step has not sampled yet, with their slots. Both are lists: all devices wait
        # while they are read, and single elements of numpy arrays are slow to read.
        self.sampled = [(row, one ^ FROM_SLOT) for row, one in enumerate(batch.ids.tolist()) if one & FROM_SLOT]
        self.is_sampled = bool(self.sampled)
        self.batch = replace(batch, ids=batch.ids.copy()) if self.is_sampled else batch
        self.sampling = sampling
        self.slots: Sequence[int] = sampling.rows["slot"].tolist()  # slots of the rows that it samples
        self.ready: dict[int, ReadyPart] = {}  # prepared parts that have not begun, by number
        self.first: PendingRows | None = None  # result of the first part, once submitted
        self.later: list[PendingRows | PendingStep] = []  # results of later parts, kept because freeing them is slow
        self.begun = 0.0  # time at which its last part began
        self.result: StepResult | None = None
        self.error: Exception | None = None

    @property
    def has_begun(self) -> bool:
        """True if its first part was submitted, or failed."""
        return self.first is not None or self.error is not None

    @property
    def tokens(self) -> Arrays:
        """The sampled ids, if they were not known from the start."""
        return {"ids": self.batch.ids} if self.is_sampled else NOTHING

    def know(self, sampled: Sequence[int]) -> None:
        """Takes the tokens that the previous step has sampled, by slot."""
        for row, slot in self.sampled:
            self.batch.ids[row] = sampled[slot]  # in place, so that `arrays` changes too

    def prepare(self, number: int) -> None:
        """Prepares part `number` of the step, before sampled tokens are known."""
        if number not in self.ready and self.error is None:
            try:
                self.ready[number] = self._runner.parts[number].ready(self.batch, self.sampling)
            except Exception as error:  # noqa: BLE001  raised when the step is awaited
                self.fail(error)

    def take(self, number: int) -> ReadyPart:
        """Takes a prepared part of the step, or prepares it now."""
        self.prepare(number)
        if self.error is not None:
            raise self.error
        return self.ready.pop(number)

    def fail(self, error: Exception) -> None:
        """Ends the step with an error."""
        self.error = error
        for part in self.ready.values():
            part.discard()
        self.ready.clear()

    def wait(self) -> StepResult:
        while self.result is None and self.error is None:
            self._runner.complete_first()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


class SplitRunner(Runner):
    """Runs a model that is split over several devices.

    A token needs all parts in sequence, and the first part needs the previous token. The host passes rows between
    parts, and the token from the last part to the first: with two parts, two waits per token. Everything else is done
    during the waits. While a device computes a step, its commands for the next step are encoded and the inputs
    uploaded. So a wait is followed by one short upload and one submit. A step whose tokens are known, as in a prompt,
    begins at once; then two devices work at the same time.
    """

    def __init__(
        self,
        model: Model,
        parts: Sequence[Part],
        make: Sequence[MakePart],
        *,
        chunk_size: int = 512,
        adapters: Adapters = NO_ADAPTERS,
        names: Sequence[str] = (),
        **options: Unpack[CacheOptions],
    ) -> None:
        super().__init__(model, adapters, chunk_size, options)
        self.layout = tuple(parts)
        self.names = names  # description of each part, for display
        config = self.cache_config
        tables = PageTables.of(model.caches, config)
        self.store = store_of(model, config, tables, self._copy_pages)
        self._under_way: deque[SplitStep] = deque()  # submitted steps in order
        self._sampled = [0] * config.slots  # last sampled token of each slot
        self.parts: list[PartRunner] = []
        arrays = BatchArrays()
        try:
            for part, one in zip(parts, make, strict=True):
                self.parts.append(one(Share(part, tables, self.store, arrays)))
            gpus = [part.device if isinstance(part, GpuRunner) else None for part in self.parts]
            self._clocks = Clocks.of(gpus)
        except BaseException:
            self.close()
            raise

    @property
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans and compiling their shaders, over all parts."""
        return sum(part.compile_seconds for part in self.parts)

    def warm_up(self) -> Iterator[None]:
        """Lets the parts record their plans, one at a time."""
        for part in self.parts:
            yield from part.warm_up()

    @property
    def ahead(self) -> int:
        """Steps that may be ahead: one if the first part computes asynchronously."""
        return min(self.cache_config.look_ahead, 1) if self.parts[0].asynchronous else 0

    def submit(self, batch: Batch, sampling: SamplingInputs) -> PendingStep:
        step = SplitStep(self, batch, sampling)
        self._under_way.append(step)
        self._begin_known()
        if len(self._under_way) == 2 and not step.has_begun:
            step.prepare(0)
        return step

    def complete_first(self) -> None:
        """Runs the oldest step through all parts, and begins the next one."""
        step = self._under_way.popleft()
        if step.first is not None and step.error is None:
            try:
                step.result = self._advance(step, step.first)
            except Exception as error:  # noqa: BLE001  raised when the step is awaited
                step.fail(error)
        self._begin_known()

    def _advance(self, step: SplitStep, first: PendingRows) -> StepResult:
        """Runs the remaining parts of a step whose first part was submitted; returns its result."""
        arrived, following = first.wait(), self._under_way[0] if self._under_way else None
        self._ended(step, 0)
        last = len(self.parts) - 1
        for number in range(1, last):
            rows = step.take(number).forward(arrived | step.tokens)
            step.later.append(rows)
            self._begun(step, number, following)
            arrived = arrived | rows.wait()
            self._ended(step, number)
        sampled = step.take(last).sample(arrived | step.tokens)
        step.later.append(sampled)
        self._begun(step, last, following)
        result = sampled.wait()
        self._ended(step, last)
        for slot, (token, _, reason) in zip(step.slots, result.rows, strict=False):
            if reason != SKIPPED:
                self._sampled[slot] = 0 if reason else token
        return result

    def _begin_known(self) -> None:
        """Submits the first part of all steps whose tokens are known, in order."""
        for number, step in enumerate(self._under_way):
            if step.has_begun:
                continue
            if number and step.is_sampled:
                return
            step.know(self._sampled)
            try:
                if self._clocks is not None and step.batch.single and not number:
                    self._clocks.token()
                step.first = step.take(0).forward(step.tokens)
                self._begun(step, 0)
            except Exception as error:  # noqa: BLE001  raised when the step is awaited
                step.fail(error)

    def _begun(self, step: SplitStep, number: int, following: SplitStep | None = None) -> None:
        """After submitting a part: does what can be done while its device computes."""
        step.begun = time.perf_counter()
        if self._clocks is not None and step.batch.single:
            self._clocks.began(number)
        if following is not None:
            following.prepare(number)

    def _ended(self, step: SplitStep, number: int) -> None:
        if self._clocks is not None and step.batch.single:
            self._clocks.ended(number, time.perf_counter() - step.begun)

    def run(self, batch: Batch, what: Output) -> Logits:
        self._finish()
        arrived = NOTHING
        for part in self.parts[:-1]:
            arrived = arrived | part.ready(batch, NOT_SAMPLED).forward(arrived).wait()
        return self.parts[-1].run(batch, what, arrived)

    def remember(self, slot: int, ids: Sequence[int], params: SamplingParams) -> None:
        self._finish()
        self.parts[-1].remember(slot, ids, params)

    def read_state(self, slot: int) -> StateArrays:
        self._finish()
        arrays: dict[str, Any] = {}
        for part in self.parts:
            arrays |= part.read_state(slot)
        return arrays

    def put_state(self, slot: int, states: StateArrays) -> None:
        self._finish()
        for part in self.parts:
            part.put_state(slot, states)

    def close(self) -> None:
        self._under_way.clear()
        for part in self.parts:
            part.close()
        # Breaks the reference cycle with the store, which would keep devices until garbage collection
        self.parts.clear()

    def _finish(self) -> None:
        """Completes all steps in flight, before an operation that reads or writes their data."""
        while self._under_way:
            self.complete_first()

    def _copy_pages(self, copies: Sequence[Copy], window: int = 0) -> None:
        self._finish()
        for part in self.parts:
            part.copy_pages(copies, window)
