"""Steps on their way to the GPU and back: filled in one by one, submitted several at a time, read when they are done.

Every submit leaves a fast GPU idle for 25 to 80 µs, so short steps share one. Results come back through a ring of
mappable buffers, each waited for by the number of its own submit: the GPU goes on with what was submitted later.
A step that waits for values of another device is made ready before: see `ReadyStep`.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import wgpu

from ..errors import DeviceLost
from . import native
from .device import Device
from .plan import ENCODED_AHEAD, Part, Plan
from .ready_step import Commands, ReadyStep
from .trace import Trace

PORTION = 0.008  # seconds of work that are submitted at a time: tokens become known in such portions
SPIN = 0.005  # seconds: of steps that take longer, waking up late is a small part
MOST_SPARES = 16  # steps that are encoded for later: wgpu-native frees no commands that were not submitted
PARTS = 6  # that a step of a prompt goes in where the GPU is idle: it begins while the rest is encoded
LEAST_IN_PARTS = 32  # rows of it: fewer compute for little longer than they encode
RECORDED = 3  # times recording its commands: of steps that take less, another thread finishes them
CLOSED = "the GPU was closed while steps were under way; load the model again"


def most_steps(look_ahead: int) -> int:
    """Steps of one submit at most: while the GPU computes one group, the next is filled in."""
    return max(1, (look_ahead + 1) // 2)


class StepGroup:
    """Steps of one plan that share a submit, and their results."""

    __slots__ = ("commands", "data", "ends", "index", "landing", "parts", "plan", "queue", "steps", "submitted")

    def __init__(self, queue: "SubmitQueue", plan: Plan) -> None:
        self.queue = queue
        self.plan = plan
        self.steps = 0
        self.parts: list[Part] = []
        self.ends = [0]  # in bytes, of the results of each step
        self.submitted = 0.0  # when; 0 until then
        self.index = 0  # of its submit
        self.landing: native.Landing | None = None
        self.commands: Commands | None = None  # where they were encoded before
        self.data: bytes | None = None

    def wait(self, step: int) -> bytes:
        """The results of a step, once all of the group are done."""
        if self.data is None:
            self.data = self.queue.collect(self)
        return self.data[self.ends[step] : self.ends[step + 1]]


class SubmitQueue:
    """Decides how many steps go into a submit, by how long they take, and owns them until their results are read."""

    def __init__(self, device: Device, look_ahead: int, layers_per_submit: int = 0) -> None:
        self.trace: Trace | None = None  # to see when steps begin and end
        self._device = device
        self.layers_per_submit = layers_per_submit
        self._ready: ReadyStep | None = None  # that did not begin yet
        self._spares: list[Commands] = []  # of steps to come that are like steps before
        self._filling: StepGroup | None = None
        self._landings: list[native.Landing] = []  # all, also those nobody waits for: their callbacks may yet be called
        self._free: list[native.Landing] = []
        self._uploads: list[native.Upload] = []  # that no step to come needs; some are under way
        self._step_seconds = math.inf
        self._arrived = 0.0  # when results came in last
        self._under_way = 0  # steps
        self._room = 1  # steps that the plan in use has buffers for
        self.look_ahead = look_ahead  # steps that may be under way at a time
        self._most_steps = most_steps(look_ahead)
        self.steps_per_submit = 1
        self.ahead = 0  # steps under way that keep the GPU busy: more make nothing faster
        self.pace()

    def pace(self, look_ahead: int | None = None) -> None:
        """Steps of a submit, and steps under way, that suit how long a step takes; `look_ahead` limits both."""
        if look_ahead is not None:
            self.look_ahead, self._most_steps = look_ahead, most_steps(look_ahead)
        most = min(self._room, self._most_steps)
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
        """One more step of a plan, by its rows, segments and outputs; gives its group and its number in it.

        `outputs` names what is read back, and how many rows of it. The group is submitted when it is full, when the GPU
        would run dry, `at_once`, or before anything else is queued.
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
        """Submits what is filled in. Called through `Device.flush`."""
        group, self._filling = self._filling, None
        if group is None:
            return
        if self._device.closed:  # wgpu would end the process when buffers are written
            raise DeviceLost(CLOSED)
        nbytes = group.ends[-1]
        landing = self._landing(nbytes)
        landing.expected = nbytes
        copies = _copies(group.parts, landing)
        stamps = None if self.trace is None else self.trace.next()
        begun = time.perf_counter()
        layers = self.layers_per_submit
        if not layers and not self._under_way and stamps is None:
            layers = self._layers_of_part(group)
        group.index = group.plan.run_steps(group.steps, layers, stamps, copies, landing)
        group.landing, group.submitted = landing, begun
        self._under_way += group.steps
        if 1 < group.steps == self.steps_per_submit and stamps is None:  # most likely the next group is as large
            group.plan.encode_ahead(group.steps, self._device.encoding)

    def _layers_of_part(self, group: StepGroup) -> int:
        """Of a step that goes in parts to an idle GPU; 0 where it goes whole, as one does that was encoded ahead."""
        plan = group.plan
        if group.steps > 1 or plan.rows < LEAST_IN_PARTS or plan.is_encoded:
            return 0
        return -(-len(plan.splits) // PARTS)

    def collect(self, group: StepGroup) -> bytes:
        """The results of a group, once it is done."""
        device = self._device
        device.flush()
        if group.landing is None or device.closed:  # wgpu would end the process when results are read
            raise DeviceLost(CLOSED)
        if self._under_way == group.steps:  # nobody submits before this one is done: the host is free until then
            self._encode_ahead(group)
        try:
            group.landing.wait(group.index, 0.0 if group.commands is None else self._spin(group))
            data = group.landing.take()
        finally:
            self._under_way -= group.steps
        self._free.append(group.landing)
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
        """Makes a step ready whose `late` inputs are not known yet; arguments as those of `add`."""
        if self._ready is not None:
            self.discard(self._ready)
        parts = [plan.part(name, count) for name, count in outputs]
        spare = next((one for one in self._spares if one.suit(plan, parts)), None)
        if spare is not None:
            self._spares.remove(spare)
        self._ready = ReadyStep(counts, inputs, late, spare or self._encode(plan, parts))
        return self._ready

    def begin(self, ready: ReadyStep, values: Mapping[str, npt.NDArray[Any]]) -> StepGroup:
        """Submits a step that was made ready."""
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
        commands.landing.map()
        device.unsubmitted.difference_update(encoded)
        self._uploads.append(commands.upload)
        group = StepGroup(self, commands.plan)
        group.steps, group.ends, group.commands = 1, [0, sum(nbytes for *_, nbytes in commands.parts)], commands
        group.landing, group.index, group.submitted = commands.landing, index, time.perf_counter()
        self._under_way += 1
        return group

    def discard(self, ready: ReadyStep) -> None:
        """Forgets a step that was made ready."""
        if ready is self._ready:
            self._ready = None
            self._spares.append(ready.commands)

    def _spin(self, group: StepGroup) -> float:
        """Seconds to ask again and again for results that another device waits for, before the thread sleeps.

        A thread that sleeps wakes up 100 to 250 µs late, and its processor is slow for a while.
        """
        alone = self._under_way == group.steps and not self._device.capabilities.software
        return SPIN if alone and self._step_seconds < SPIN else 0.0

    def _encode_ahead(self, group: StepGroup) -> None:
        """Encodes the next step on the guess that it is like this one, unless it is ready."""
        if group.commands is None:
            group.plan.encode_ahead()
            return
        plan, parts = group.plan, group.commands.parts
        guessed = self._ready is not None or any(one.suit(plan, parts) for one in self._spares)
        if not guessed and plan.rows <= ENCODED_AHEAD and len(self._spares) < MOST_SPARES:
            self._spares.append(self._encode(plan, parts))

    def forget_spares(self) -> None:
        """Forgets what was encoded for steps to come, as something about them has changed."""
        self._spares.clear()

    def _encode(self, plan: Plan, parts: Sequence[Part]) -> Commands:
        """The commands of a step of a plan."""
        nbytes = sum(size for *_, size in parts)
        landing, inputs = self._landing(nbytes), plan.step.host[0].nbytes
        landing.expected, upload = nbytes, self._upload(inputs)
        stamps = None if self.trace is None or self.layers_per_submit else self.trace.next()
        before = [(upload.buffer, 0, plan.step.buffer.handle, 0, inputs)]
        begun = time.perf_counter()
        recorded = [*plan.record_steps(1, self.layers_per_submit, stamps, _copies(parts, landing), before)]
        seconds = time.perf_counter() - begun
        return Commands(plan, parts, landing, upload, self._finish(recorded, seconds))

    def _finish(self, recorded: Sequence[Any], seconds: float) -> Callable[[], Sequence[Any]]:
        """Has commands finished that took so long to record; gives a function that waits for them.

        Another thread does it where this one has no time: finishing takes as long as recording. It costs this thread
        some time as well.
        """
        finished: list[Any] = []

        def finish() -> Sequence[Any]:
            encoded = []
            for one in recorded:
                encoded.append(one.finish() if isinstance(one, native.Recording) else one)
                self._device.unsubmitted.add(encoded[-1])
            finished.extend(encoded)
            return finished

        if RECORDED * seconds < self._step_seconds:
            finish()
            return lambda: finished
        future = self._device.encoding.submit(finish)
        return lambda: finished or future.result()  # which takes its time even where it need not wait

    def measured(self, seconds: float) -> None:
        """A step was seen to take so long."""
        self._step_seconds = seconds
        self.pace()

    def _landing(self, nbytes: int) -> "native.Landing":
        """A buffer of the ring that is free and large enough, or a new one."""
        for at, landing in enumerate(self._free):
            if landing.nbytes >= nbytes:
                return self._free.pop(at)
        size = max(4096, 1 << (nbytes - 1).bit_length())
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        with native.typed_errors("reading results back"):
            handle: Any = self._device.handle.create_buffer(size=size, usage=usage)
        self._landings.append(native.Landing(self._device.handle, handle, size))
        return self._landings[-1]

    def _upload(self, nbytes: int) -> "native.Upload":
        """A buffer that is large enough, and that the host may write into: one that is free, or a new one."""
        upload = next((one for one in self._uploads if one.nbytes >= nbytes and one.is_mapped), None)
        if upload is not None:
            self._uploads.remove(upload)
        else:
            with native.typed_errors("making room to upload"):
                usage = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
                handle: Any = self._device.handle.create_buffer(size=nbytes, usage=usage, mapped_at_creation=True)
            upload = native.Upload(self._device.handle, handle, nbytes)
            self._device.uploads.append(upload)
        upload.open()
        return upload


def _copies(parts: Sequence[Part], landing: "native.Landing") -> "list[native.Copy]":
    """Results one behind the other into a buffer of the ring."""
    copies, at = [], 0
    for source, offset, size in parts:
        copies.append((source, offset, landing.buffer, at, size))
        at += size
    return copies
