"""A plan: the recorded dispatches of a step, with their buffers and bind groups. Knows no model or text."""

import contextlib
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from . import native
from .cost import NO_CONTEXT_COST, ContextCost, Span
from .device import Buffer, Device
from .shader import Pipeline
from .typed_errors import TypedErrors

Grid = tuple[int, int, int]
Part = tuple[Any, int, int]  # a buffer, an offset in it, bytes
LENGTHS = "lengths"  # an input stored with the counts: total positions of all sequences, and positions of the longest
ENCODED_AHEAD = 64  # maximum rows of a step that is encoded ahead: computing larger steps takes far longer


def fold(groups: int, limit: int) -> Grid:
    """A grid of at least `groups` workgroups within the limit of each dimension."""
    if groups <= limit:
        return groups, 1, 1
    rows = -(-groups // limit)
    return -(-groups // rows), rows, 1


@dataclass(frozen=True)
class Slice:
    """A range of a buffer that a shader binds."""

    buffer: Buffer
    offset: int
    nbytes: int
    step_stride: int = 0  # bytes between the ranges of two steps of a submit; 0: all steps use the same range

    def at(self, step: int) -> int:
        """The offset for a step of a submit."""
        return self.offset + step * self.step_stride


@dataclass(frozen=True)
class Dispatch:
    """One dispatch of a plan: a pipeline, its bindings by number, and the grid of workgroups."""

    name: str
    pipeline: Pipeline
    bound: Mapping[int, Slice]
    grid: Grid
    fixed_bytes: int  # bytes moved for any number of rows: the weights
    row_bytes: int  # bytes moved per row
    row_flops: int
    picked: bool = False  # whether it runs over the picked rows only
    context_cost: ContextCost = NO_CONTEXT_COST

    def cost(self, rows: int, outputs: int, spans: Sequence[Span]) -> tuple[int, int]:
        """Bytes moved and flops in a step of `rows` rows, `outputs` of which are picked."""
        count = outputs if self.picked else rows
        nbytes, flops = self.context_cost.cost(spans)
        return self.fixed_bytes + count * self.row_bytes + nbytes, count * self.row_flops + flops


class StepBuffer:
    """The data that changes from step to step: counts and inputs, uploaded by one copy.

    Kernels read the counts from a uniform `Step`. There are two of them: one for dispatches over all rows, and one for
    dispatches over the picked rows. Each step of a submit has its own copy of everything. A read-only array that a step
    already holds is not copied again.
    """

    HEADER = 256  # bytes of a uniform `Step`; both precede the inputs

    def __init__(
        self,
        device: Device,
        inputs: Mapping[str, tuple[npt.DTypeLike, tuple[int, ...]]],
        bucket: int,
        steps: int = 1,
    ) -> None:
        self._device = device
        align = max(16, device.capabilities.offset_alignment)
        self._places: dict[str, tuple[int, int]] = {}
        end = 2 * self.HEADER
        for name, (dtype, shape) in inputs.items():
            nbytes = max(16, int(np.prod(shape)) * np.dtype(dtype).itemsize)
            self._places[name] = end, nbytes
            end = -(-(end + nbytes) // align) * align
        self.steps = steps  # maximum steps of a submit
        self._apart = end
        self.buffer = device.buffer(steps * end, "step", uniform=True)
        self.host = np.zeros((steps, end), np.uint8)  # the bytes to upload, by step
        self._headers = [host[: 2 * self.HEADER].data.cast("I") for host in self.host]
        for header in self._headers:
            header[3] = header[3 + self.HEADER // 4] = bucket
        self._views = [
            {
                name: host[offset : offset + int(np.prod(shape)) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
                for (name, (dtype, shape)), (offset, _) in zip(inputs.items(), self._places.values(), strict=True)
            }
            for host in self.host
        ]
        self._filled: list[dict[str, npt.NDArray[Any] | None]] = [dict.fromkeys(inputs) for _ in self.host]

    @property
    def names(self) -> Iterable[str]:
        """The names of the inputs."""
        return self._places

    def slice(self, name: str) -> Slice:
        """The place of an input on the device."""
        offset, nbytes = self._places[name]
        return Slice(self.buffer, offset, nbytes, self._apart)

    def uniform(self, picked: bool = False) -> Slice:
        """The place of the `Step` struct, for all rows or for the picked rows."""
        return Slice(self.buffer, self.HEADER if picked else 0, self.HEADER, self._apart)

    def fill(
        self,
        step: int,
        rows: int,
        inputs: Mapping[str, npt.ArrayLike],
        segments: int = 0,
        outputs: int = 0,
        late: Collection[str] = (),
    ) -> None:
        """Fills in the counts and inputs of a step on the host, except inputs in `late`, which follow by `place`."""
        header, picked = self._headers[step], self.HEADER // 4
        header[0], header[1], header[2] = rows, segments, outputs
        header[picked], header[picked + 1], header[picked + 2] = outputs, segments, outputs
        header[4], header[5] = np.asarray(inputs.get(LENGTHS, (0, 0))).tolist()
        filled = self._filled[step]
        for name, view in self._views[step].items():
            if name in late:
                continue
            given = inputs[name]
            if given is filled[name]:
                continue
            values = np.asarray(given)
            filled[name] = None if values.flags.writeable else values
            if values.shape[1:] == view.shape[1:]:
                view[: len(values)] = values  # there may be fewer rows
            else:
                view[tuple(map(slice, values.shape))] = values  # a view may have fewer pages

    def place(self, name: str, values: npt.NDArray[Any]) -> tuple[int, npt.NDArray[np.uint8]]:
        """The offset of an input in a step, and the bytes of its first rows."""
        dtype = self._views[0][name].dtype
        return self._places[name][0], np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8)

    def write(self, rows: int, inputs: Mapping[str, npt.ArrayLike], segments: int = 0, outputs: int = 0) -> None:
        """Queues the upload of a single step."""
        self._device.flush()  # submits the steps that are filled in
        self.fill(0, rows, inputs, segments, outputs)
        self._device.write(self.buffer, self.host[:1])


@dataclass(frozen=True)
class Output:
    """A result that is readable until the scratch memory is used again."""

    place: Slice
    dtype: npt.DTypeLike
    shape: tuple[int, ...]  # for the maximum number of rows, which is the first dimension

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize


class Plan:
    """Dispatches for up to `rows` rows, replayed with any number of rows.

    Several steps may share one submit; each has its own inputs, and optionally its own outputs.
    """

    def __init__(
        self,
        device: Device,
        rows: int,
        dispatches: Sequence[Dispatch],
        step: StepBuffer,
        outputs: Mapping[str, Output],
        splits: Sequence[int] = (),
    ) -> None:
        self.device = device
        self.rows = rows
        self.dispatches = tuple(dispatches)
        self.step = step
        self.outputs = dict(outputs)
        self.splits = tuple(splits)  # dispatches that start a layer, where the plan may be split into several submits
        self._groups: list[list[Any]] = []  # bind groups by step of a submit
        self._programs: list[list[native.Command]] = []  # commands by step of a submit
        # Commands encoded ahead, by number of steps of the submit; another thread may still be encoding them.
        self._encoded: dict[int, native.Encoded | Future[native.Encoded]] = {}
        self.bind(1)

    def bind(self, steps: int) -> None:
        """Creates the bind groups for up to `steps` steps of a submit, which otherwise happens on first use."""
        for step in range(len(self._groups), steps):
            groups = [_bind_group(self.device, dispatch, step) for dispatch in self.dispatches]
            self._groups.append(groups)
            self._programs.append(
                native.program(
                    (dispatch.pipeline.handle, group, dispatch.grid)
                    for dispatch, group in zip(self.dispatches, groups, strict=True)
                )
            )

    def compile(self) -> None:
        """Makes the driver compile the kernels before the first step, by dispatching each without workgroups."""
        encoder = self.device.handle.create_command_encoder()
        compute = encoder.begin_compute_pass()
        handles = [dispatch.pipeline.handle for dispatch in self.dispatches]
        for handle, group in dict(zip(handles, self.groups, strict=True)).items():
            compute.set_pipeline(handle)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(0, 0, 0)
        compute.end()
        self.device.submit([encoder.finish()])
        native.wait(self.device.handle)

    @property
    def groups(self) -> list[Any]:
        """The bind groups of the first step of a submit."""
        return self._groups[0]

    @property
    def program(self) -> "list[native.Command]":
        """The commands of the first step of a submit."""
        return self._programs[0]

    def reads(self, name: str) -> bool:
        """True if any dispatch reads this input."""
        return name in self._read

    @cached_property
    def _read(self) -> frozenset[str]:
        bound = {(one.buffer, one.offset) for dispatch in self.dispatches for one in dispatch.bound.values()}
        places = {name: self.step.slice(name) for name in self.step.names}
        return frozenset(name for name, one in places.items() if (one.buffer, one.offset) in bound)

    def run(
        self,
        rows: int,
        inputs: Mapping[str, npt.ArrayLike],
        segments: int = 0,
        outputs: int = 0,
        layers_per_submit: int = 0,
        stamps: Mapping[str, Any] | None = None,
        copies: "Sequence[native.Copy]" = (),
    ) -> int:
        """Uploads the counts and inputs, and submits all dispatches followed by `copies` of results.

        With `layers_per_submit`, the GPU starts on the first layers while the CPU encodes the next. `stamps` are the
        timestamp writes of the pass, if there is a single one. Returns the index of the last submit, to wait for.
        """
        self.device.flush()  # submits the steps that are filled in
        self.step.fill(0, rows, inputs, segments, outputs)
        return self.run_steps(1, layers_per_submit, stamps, copies)

    def run_steps(
        self,
        steps: int,
        layers_per_submit: int = 0,
        stamps: Mapping[str, Any] | None = None,
        copies: "Sequence[native.Copy]" = (),
        result_buffer: "native.ResultBuffer | None" = None,
    ) -> int:
        """Submits `steps` steps in order, whose inputs are filled in; only a single step may be split by layers.

        `result_buffer` is the buffer that the copies fill; it is mapped after them.
        """
        assert not (layers_per_submit and (stamps or steps > 1)), "a split step has no single begin and end"
        if steps > len(self._groups):
            self.bind(steps)
        data, device = self.step.host[:steps], self.device
        if not layers_per_submit:
            each = self._programs[:steps]
            encoded = None if stamps else self._encoded.pop(steps, None)
            if isinstance(encoded, Future):
                encoded = encoded.result()
            device.unsubmitted.discard(encoded)
            return native.run(
                device.handle, self.step.buffer.handle, data, each, copies, stamps, result_buffer, encoded
            )
        device.write(self.step.buffer, data)
        for recording in self.record_steps(steps, layers_per_submit, stamps, copies):
            index = device.submit([recording.finish()])
        if result_buffer is not None:
            result_buffer.map()
        return index

    @property
    def is_encoded(self) -> bool:
        """True if the next submit of one step was encoded ahead."""
        return 1 in self._encoded

    def encode_ahead(self, steps: int = 1, thread: Executor | None = None) -> None:
        """Encodes the next submit of `steps` steps, while the GPU is busy or on another `thread`."""
        if steps in self._encoded or self.rows > ENCODED_AHEAD:
            return

        def encode() -> native.Encoded:
            encoded = self.encode(steps=steps)
            self.device.unsubmitted.add(encoded)
            return encoded

        if thread is None:
            self._encoded[steps] = encode()
            return
        with contextlib.suppress(RuntimeError):  # the thread has ended, because the device or Python is shutting down
            self._encoded[steps] = thread.submit(encode)

    def record_steps(
        self,
        steps: int,
        layers_per_submit: int,
        stamps: Mapping[str, Any] | None,
        copies: "Sequence[native.Copy]",
        before: "Sequence[native.Copy]" = (),
    ) -> "Iterator[native.Recording]":
        """Yields recordings of `steps` steps, which another thread may finish: one, or one per group of layers.

        Copies in `before` precede the first step.
        """
        cuts = [0, *self.splits[layers_per_submit::layers_per_submit]] if layers_per_submit else [0]
        *earlier, final = itertools.pairwise([*cuts, len(self.dispatches)])
        for first, last in earlier:
            yield self.record(first, last, stamps, before=() if first else before)
        yield self.record(*final, stamps, copies, steps, () if earlier else before)

    def record(
        self,
        first: int = 0,
        last: int | None = None,
        stamps: Mapping[str, Any] | None = None,
        copies: "Sequence[native.Copy]" = (),
        steps: int = 1,
        before: "Sequence[native.Copy]" = (),
    ) -> "native.Recording":
        """Records the commands of `encode`. wgpu has not validated or translated them yet."""
        each = [commands[first:last] for commands in self._programs[:steps]]
        return native.record(self.device.handle, each, copies, stamps, before)

    def encode(self, first: int = 0, last: int | None = None, steps: int = 1) -> "native.Encoded":
        """A command buffer of the dispatches: one compute pass, replayed through raw handles.

        Nothing is checked or allocated per dispatch; wgpu validates the whole at the end.
        """
        return self.record(first, last, steps=steps).finish()

    def cost(self, rows: int, outputs: int, spans: Sequence[Span]) -> tuple[int, int]:
        """Bytes moved and flops of the whole step."""
        each = [dispatch.cost(rows, outputs, spans) for dispatch in self.dispatches]
        return sum(nbytes for nbytes, _ in each), sum(flops for _, flops in each)

    def part(self, name: str, rows: int, step: int = 0) -> Part:
        """The place of the first rows of an output, for a step of a submit."""
        output = self.outputs[name]
        place = output.place
        return place.buffer.handle, place.offset + step * place.step_stride, rows * output.row_bytes

    def read(self, name: str, rows: int) -> npt.NDArray[Any]:
        """Waits for the GPU and returns the first rows of an output."""
        output = self.outputs[name]
        data = self.device.read(output.place.buffer, rows * output.row_bytes, output.place.offset)
        return np.frombuffer(data, output.dtype).reshape(rows, *output.shape[1:])


def _bind_group(device: Device, dispatch: Dispatch, step: int) -> Any:
    bound = {n: (s.buffer, s.at(step), s.nbytes) for n, s in dispatch.bound.items()}
    with TypedErrors(f"binding {dispatch.name}"):
        return device.bind_group(dispatch.pipeline, bound)
