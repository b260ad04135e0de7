"""The queue of steps in flight: filled in one by one, submitted in groups, and read back when done.

Every submit leaves a fast GPU idle for 25 to 80 µs, so short steps share one. Results come back through a ring of
mappable buffers. Each is waited for by the index of its own submit, while the GPU continues with later submits.
A step that needs values from another device is prepared in advance: see `ReadyStep`.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from ..errors import DeviceLost
from . import native, wgpu
from .device import Device
from .plan import ENCODED_AHEAD, Part, Plan
from .ready_step import Commands, ReadyStep
from .trace import Trace
from .typed_errors import TypedErrors

PORTION = 0.008  # seconds of work per submit: tokens become available in such portions
SPIN = 0.005  # seconds: for longer steps, a late wake-up matters little
MAX_SPARES = 16  # maximum spare command buffers: wgpu-native does not free commands that were not submitted
PARTS = 6  # number of submits of a prompt step if the GPU is idle: it starts while the rest is encoded
MIN_IN_PARTS = 32  # minimum rows for PARTS: smaller steps take little longer to compute than to encode
RECORDED = 3  # if a step takes less than this many times its recording time, another thread finishes its commands
CLOSED = "the GPU was closed while steps were under way; load the model again"


def max_steps(look_ahead: int) -> int:
    """The maximum number of steps of a submit: while the GPU computes one group, the next is filled in."""
    return max(1, (look_ahead + 1) // 2)


class StepGroup:
    """Steps of one plan that share a submit, and their results."""

    __slots__ = ("commands", "data", "ends", "index", "parts", "plan", "queue", "result_buffer", "steps", "submitted")

    def __init__(self, queue: "SubmitQueue", plan: Plan) -> None:
        self.queue = queue
        self.plan = plan
        self.steps = 0
        self.parts: list[Part] = []
        self.ends = [0]  # end of the results of each step, in bytes
        self.submitted = 0.0  # time of its submit; 0 before
        self.index = 0  # index of its submit
        self.result_buffer: native.ResultBuffer | None = None
        self.commands: Commands | None = None  # if they were encoded in advance
        self.data: bytes | None = None

    def wait(self, step: int) -> bytes:
        """Waits for the whole group and returns the results of a step."""
        if self.data is None:
            self.data = self.queue.collect(self)
        return self.data[self.ends[step] : self.ends[step + 1]]


class SubmitQueue:
    """Groups steps into submits by their duration, and owns them until their results are read."""

    def __init__(self, device: Device, look_ahead: int, layers_per_submit: int = 0) -> None:
        self.trace: Trace | None = None  # records the start and end of steps
        self._device = device
        self.layers_per_submit = layers_per_submit
        self._ready: ReadyStep | None = None  # prepared but not begun
        self._spares: list[Commands] = []  # command buffers for later steps like earlier ones
        self._filling: StepGroup | None = None
        self._result_buffers: list[native.ResultBuffer] = []  # all of them: callbacks of unused ones may still come
        self._free: list[native.ResultBuffer] = []
        self._uploads: list[native.Upload] = []  # buffers that no prepared step needs; some are in flight
        self._step_seconds = math.inf
        self._arrived = 0.0  # time of the latest results
        self._under_way = 0  # steps in flight
        self._room = 1  # steps that the current plan has buffers for
        self.look_ahead = look_ahead  # maximum number of steps in flight
        self._max_steps = max_steps(look_ahead)
        self.steps_per_submit = 1
        self.ahead = 0  # number of steps in flight that keeps the GPU busy: more do not help
        self.pace()

    def pace(self, look_ahead: int | None = None) -> None:
        """Adjusts the number of steps per submit and in flight to the duration of a step, within `look_ahead`."""
        if look_ahead is not None:
            self.look_ahead, self._max_steps = look_ahead, max_steps(look_ahead)
        most = min(self._room, self._max_steps)
        self.steps_per_submit = max(1, min(most, int(PORTION / max(self._step_seconds, 1e-9))))
        self.ahead = min(self.look_ahead, max(2, 2 * self.steps_per_submit - 1))

    def add(
        self,
        plan: Plan,
        counts: tuple[int, int, int],
        inputs: Mapping[str, Any],
        outputs: Sequence[tuple[str, int]],
        *,
        at_once: bool = False,
    ) -> tuple[StepGroup, int]:
        """Adds a step of a plan with its counts of rows, segments and outputs. Returns its group and its index in it.

        `outputs` lists results to read back, with their numbers of rows. The group is submitted when it is full, when
        the GPU would run idle, if `at_once`, or before anything else is queued.
        """
        group = self._filling
        if group is None or group.plan is not plan:
            self._device.flush()
            if self._room != plan.step.steps:
                self._room = plan.step.steps
                self.pace()
            group = self._filling = StepGroup(self, plan)
            self._device.defer(self.flush)
        step = group.steps
        rows, segments, picked = counts
        plan.step.fill(step, rows, inputs, segments, picked)
        nbytes = 0
        for name, count in outputs:
            part = plan.part(name, count, step)
            group.parts.append(part)
            nbytes += part[2]
        group.ends.append(group.ends[-1] + nbytes)
        group.steps = step + 1
        if at_once or self.layers_per_submit or step + 1 >= min(self.steps_per_submit, self._under_way):
            self._device.flush()
        return group, step

    def flush(self) -> None:
        """Submits the group that is being filled. Called through `Device.flush`."""
        group, self._filling = self._filling, None
        if group is None:
            return
        if self._device.closed:  # wgpu would end the process when buffers are written
            raise DeviceLost(CLOSED)
        nbytes = group.ends[-1]
        result_buffer = self._result_buffer(nbytes)
        result_buffer.expected = nbytes
        copies = _copies(group.parts, result_buffer)
        stamps = None if self.trace is None else self.trace.next()
        begun = time.perf_counter()
        layers = self.layers_per_submit
        if not layers and not self._under_way and stamps is None:
            layers = self._layers_of_part(group)
        group.index = group.plan.run_steps(group.steps, layers, stamps, copies, result_buffer)
        group.result_buffer, group.submitted = result_buffer, begun
        self._under_way += group.steps
        if 1 < group.steps == self.steps_per_submit and stamps is None:  # the next group is probably as large
            group.plan.encode_ahead(group.steps, self._device.encoding)

    def _layers_of_part(self, group: StepGroup) -> int:
        """Layers per submit if a step should be split for an idle GPU; 0 if it is submitted as a whole."""
        plan = group.plan
        if group.steps > 1 or plan.rows < MIN_IN_PARTS or plan.is_encoded:
            return 0
        return -(-len(plan.splits) // PARTS)

    def collect(self, group: StepGroup) -> bytes:
        """Waits for a group and returns its results."""
        device = self._device
        device.flush()
        if group.result_buffer is None or device.closed:  # wgpu would end the process when results are read
            raise DeviceLost(CLOSED)
        if self._under_way == group.steps:  # nothing else will be submitted before it is done, so the host is free
            self._encode_ahead(group)
        try:
            group.result_buffer.wait(group.index, 0.0 if group.commands is None else self._spin(group))
            data = group.result_buffer.take()
        finally:
            self._under_way -= group.steps
        self._free.append(group.result_buffer)
        now = time.perf_counter()
        self.measured((now - max(group.submitted, self._arrived)) / group.steps)
        self._arrived = now
        return data

    def ready(
        self,
        plan: Plan,
        counts: tuple[int, int, int],
        inputs: Mapping[str, Any],
        outputs: Sequence[tuple[str, int]],
        late: Collection[str],
    ) -> ReadyStep:
        """Prepares a step whose `late` inputs are not known yet; other arguments as for `add`."""
        if self._ready is not None:
            self.discard(self._ready)
        parts = [plan.part(name, count) for name, count in outputs]
        spare = next((one for one in self._spares if one.suit(plan, parts)), None)
        if spare is not None:
            self._spares.remove(spare)
        self._ready = ReadyStep(counts, inputs, late, spare or self._encode(plan, parts))
        return self._ready

    def begin(self, ready: ReadyStep, values: Mapping[str, npt.NDArray[Any]]) -> StepGroup:
        """Submits a prepared step, with the inputs that were unknown when it was prepared."""
        device, commands = self._device, ready.commands
        assert ready is self._ready, "another step was made ready since"
        if device.closed:  # wgpu would end the process when buffers are written
            raise DeviceLost(CLOSED)
        device.flush()
        self._ready = None
        encoded = commands.encoded()
        ready.complete(values)
        commands.upload.unmap()
        for one in encoded:
            index = device.submit([one])
        commands.upload.map()
        commands.result_buffer.map()
        device.unsubmitted.difference_update(encoded)
        self._uploads.append(commands.upload)
        group = StepGroup(self, commands.plan)
        group.steps, group.ends, group.commands = 1, [0, sum(nbytes for *_, nbytes in commands.parts)], commands
        group.result_buffer, group.index, group.submitted = commands.result_buffer, index, time.perf_counter()
        self._under_way += 1
        return group

    def discard(self, ready: ReadyStep) -> None:
        """Discards a prepared step, keeping its commands as a spare."""
        if ready is self._ready:
            self._ready = None
            self._spares.append(ready.commands)

    def _spin(self, group: StepGroup) -> float:
        """Seconds of polling, before the thread sleeps, for results that another device needs.

        A sleeping thread wakes up 100 to 250 µs late, and its core is slow for a while.
        """
        alone = self._under_way == group.steps and not self._device.capabilities.software
        return SPIN if alone and self._step_seconds < SPIN else 0.0

    def _encode_ahead(self, group: StepGroup) -> None:
        """Encodes the next step, assuming that it is like this one, unless one is prepared already."""
        if group.commands is None:
            group.plan.encode_ahead()
            return
        plan, parts = group.plan, group.commands.parts
        guessed = self._ready is not None or any(one.suit(plan, parts) for one in self._spares)
        if not guessed and plan.rows <= ENCODED_AHEAD and len(self._spares) < MAX_SPARES:
            self._spares.append(self._encode(plan, parts))

    def _encode(self, plan: Plan, parts: Sequence[Part]) -> Commands:
        """Encodes the commands of a step of a plan."""
        nbytes = sum(size for *_, size in parts)
        result_buffer, inputs = self._result_buffer(nbytes), plan.step.host[0].nbytes
        result_buffer.expected, upload = nbytes, self._upload(inputs)
        stamps = None if self.trace is None or self.layers_per_submit else self.trace.next()
        before = [(upload.buffer, 0, plan.step.buffer.handle, 0, inputs)]
        begun = time.perf_counter()
        recorded = [*plan.record_steps(1, self.layers_per_submit, stamps, _copies(parts, result_buffer), before)]
        seconds = time.perf_counter() - begun
        return Commands(plan, parts, result_buffer, upload, self._finish(recorded, seconds))

    def _finish(self, recorded: Sequence["native.Recording"], seconds: float) -> Callable[[], Sequence[Any]]:
        """Finishes commands that took `seconds` to record. Returns a function that waits for them.

        If steps are short, another thread does it, because finishing takes as long as recording. That still costs this
        thread some time.
        """
        finished: list[Any] = []

        def finish() -> Sequence[Any]:
            encoded = []
            for one in recorded:
                encoded.append(one.finish())
                self._device.unsubmitted.add(encoded[-1])
            finished.extend(encoded)
            return finished

        if RECORDED * seconds < self._step_seconds:
            finish()
            return lambda: finished
        future = self._device.encoding.submit(finish)
        return lambda: finished or future.result()  # `result` is slow, even if there is nothing to wait for

    def measured(self, seconds: float) -> None:
        """Records the measured duration of a step."""
        self._step_seconds = seconds
        self.pace()

    def _result_buffer(self, nbytes: int) -> "native.ResultBuffer":
        """A free buffer of the ring that is large enough, or a new one."""
        for at, result_buffer in enumerate(self._free):
            if result_buffer.nbytes >= nbytes:
                return self._free.pop(at)
        size = max(4096, 1 << (nbytes - 1).bit_length())
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        with TypedErrors("reading results back"):
            handle: Any = self._device.handle.create_buffer(size=size, usage=usage)
        self._result_buffers.append(native.ResultBuffer(self._device.handle, handle, size))
        return self._result_buffers[-1]

    def _upload(self, nbytes: int) -> "native.Upload":
        """A mapped upload buffer that is large enough: a free one, or a new one."""
        upload = next((one for one in self._uploads if one.nbytes >= nbytes and one.is_mapped), None)
        if upload is not None:
            self._uploads.remove(upload)
        else:
            with TypedErrors("making room to upload"):
                usage = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
                handle: Any = self._device.handle.create_buffer(size=nbytes, usage=usage, mapped_at_creation=True)
            upload = native.Upload(self._device.handle, handle, nbytes)
            self._device.uploads.append(upload)
        upload.open()
        return upload


def _copies(parts: Sequence[Part], result_buffer: "native.ResultBuffer") -> "list[native.Copy]":
    """Copies of results, packed into a buffer of the ring."""
    copies, at = [], 0
    for source, offset, size in parts:
        copies.append((source, offset, result_buffer.buffer, at, size))
        at += size
    return copies
