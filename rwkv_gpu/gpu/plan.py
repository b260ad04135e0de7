"""A recorded step: its dispatches, their buffers and bind groups. Replays; knows no model and no text."""

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

Grid = tuple[int, int, int]
Part = tuple[Any, int, int]  # a buffer, where in it, bytes
LENGTHS = "lengths"  # not bound, but among the counts: the positions of all sequences, and of the longest
ENCODED_AHEAD = 64  # rows of a step at most that is encoded ahead: longer ones compute for far longer than they encode


@dataclass(frozen=True)
class Slice:
    """A part of a buffer, as a shader binds it."""

    buffer: Buffer
    offset: int
    nbytes: int
    apart: int = 0  # bytes from that of one step of a submit to that of the next; 0 where all have the same

    def at(self, step: int) -> int:
        """Where that of a step begins."""
        return self.offset + step * self.apart


@dataclass(frozen=True)
class Dispatch:
    """One step of a plan: a pipeline, what it binds by number, and how many workgroups."""

    name: str
    pipeline: Pipeline
    bound: Mapping[int, Slice]
    grid: Grid
    fixed_bytes: int  # moved whatever the row count is: the weights
    row_bytes: int  # moved for each row
    row_flops: int
    picked: bool = False  # its rows are those that were picked
    context_cost: ContextCost = NO_CONTEXT_COST

    def cost(self, rows: int, outputs: int, spans: Sequence[Span]) -> tuple[int, int]:
        """Bytes moved and flops in a step of so many rows, of which so many are picked."""
        count = outputs if self.picked else rows
        nbytes, flops = self.context_cost.cost(spans)
        return self.fixed_bytes + count * self.row_bytes + nbytes, count * self.row_flops + flops


class StepBuffer:
    """What changes from step to step: the counts and the plan's inputs, uploaded by one copy.

    Kernels find the counts in a uniform `Step`. There are two: for those over all rows, and, for what follows the
    choice of outputs, one whose rows are these. Each step of a submit has its own of all. What is there already is not
    filled in again: an array that nobody can write into, where the step of that number had it last.
    """

    HEADER = 256  # bytes of a uniform `Step`; both stand before the inputs

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
        self.steps = steps  # that one submit may have
        self._apart = end
        self.buffer = device.buffer(steps * end, "step", uniform=True)
        self.host = np.zeros((steps, end), np.uint8)  # what is to be uploaded of each step
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
        """The inputs."""
        return self._places

    def slice(self, name: str) -> Slice:
        """Where an input lies on the device."""
        offset, nbytes = self._places[name]
        return Slice(self.buffer, offset, nbytes, self._apart)

    def uniform(self, picked: bool = False) -> Slice:
        """Where the `Step` struct lies: of all rows, or of those that were picked."""
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
        """The counts of a step and those inputs that the plan reads, on the host; `late` ones come later: `place`."""
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
                view[: len(values)] = values  # rows may be fewer
            else:
                view[tuple(map(slice, values.shape))] = values  # and pages

    def place(self, name: str, values: npt.NDArray[Any]) -> tuple[int, npt.NDArray[np.uint8]]:
        """Where the first rows of an input lie in a step, and their bytes."""
        dtype = self._views[0][name].dtype
        return self._places[name][0], np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8)

    def write(self, rows: int, inputs: Mapping[str, npt.ArrayLike], segments: int = 0, outputs: int = 0) -> None:
        """Queues the upload of a step that comes alone."""
        self._device.flush()  # steps that are filled in come first
        self.fill(0, rows, inputs, segments, outputs)
        self._device.write(self.buffer, self.host[:1])


@dataclass(frozen=True)
class Output:
    """A result that stays readable until the scratch memory is used again."""

    place: Slice
    dtype: npt.DTypeLike
    shape: tuple[int, ...]  # of the bucket; the first dimension is rows

    @cached_property
    def row_bytes(self) -> int:
        """Of one row."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize


class Plan:
    """Dispatches for up to `rows` rows, replayed with any count of them.

    Several steps may share one submit, where each has inputs, and maybe outputs, of its own.
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
        self.splits = tuple(splits)  # where a layer starts: the plan may be submitted in parts there
        self._groups: list[list[Any]] = []  # bind groups by step of a submit
        self._programs: list[list[native.Command]] = []  # commands by step of a submit
        # The dispatches of a submit to come, by how many steps it has; some that another thread still encodes.
        self._encoded: dict[int, native.Encoded | Future[native.Encoded]] = {}
        self.bind(1)

    def bind(self, steps: int) -> None:
        """Bind groups for so many steps of a submit, made now if not before: else when they are wanted first."""
        for step in range(len(self._groups), steps):
            groups = [_bind_group(self.device, dispatch, step) for dispatch in self.dispatches]
            self._groups.append(groups)
            self._programs.append(
                native.program(
                    (dispatch.pipeline.handle, group, dispatch.grid)
                    for dispatch, group in zip(self.dispatches, groups, strict=True)
                )
            )

    @property
    def groups(self) -> list[Any]:
        """The bind groups of the first step of a submit."""
        return self._groups[0]

    @property
    def program(self) -> "list[native.Command]":
        """The commands of the first step of a submit."""
        return self._programs[0]

    def reads(self, name: str) -> bool:
        """Whether a dispatch reads this input."""
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
        """Uploads the counts and inputs and submits every dispatch, and copies of results behind them.

        At once, or some layers at a time: then the GPU starts on the first while the CPU encodes the next. `stamps` is
        what a pass is told to write of its begin and end, where it is one. The number that is returned waits for all.
        """
        self.device.flush()  # steps that are filled in come first
        self.step.fill(0, rows, inputs, segments, outputs)
        return self.run_steps(1, layers_per_submit, stamps, copies)

    def run_steps(
        self,
        steps: int,
        layers_per_submit: int = 0,
        stamps: Mapping[str, Any] | None = None,
        copies: "Sequence[native.Copy]" = (),
        landing: "native.Landing | None" = None,
    ) -> int:
        """The same for so many steps, one after the other, whose inputs are filled in; only one step goes in parts.

        `landing` is what the copies fill; it is asked for behind them.
        """
        assert not (layers_per_submit and (stamps or steps > 1)), "what goes in parts has no one begin and end"
        if steps > len(self._groups):
            self.bind(steps)
        data, device = self.step.host[:steps], self.device
        if native.CAN_REPLAY and not layers_per_submit:
            each = self._programs[:steps]
            encoded = None if stamps else self._encoded.pop(steps, None)
            if isinstance(encoded, Future):
                encoded = encoded.result()
            device.unsubmitted.discard(encoded)
            return native.run(device.handle, self.step.buffer.handle, data, each, copies, stamps, landing, encoded)
        device.write(self.step.buffer, data)
        for commands in self.encode_steps(steps, layers_per_submit, stamps, copies):
            index = device.submit([commands])
        if landing is not None:
            landing.map()
        return index

    @property
    def is_encoded(self) -> bool:
        """Whether the next submit of one step was encoded ahead."""
        return 1 in self._encoded

    def encode_ahead(self, steps: int = 1, thread: Executor | None = None) -> None:
        """Encodes the next submit of so many steps: worth it while the GPU computes, or if another `thread` does it."""
        if steps in self._encoded or self.rows > ENCODED_AHEAD or not native.CAN_REPLAY:
            return

        def encode() -> native.Encoded:
            encoded = self.encode(steps=steps)
            self.device.unsubmitted.add(encoded)
            return encoded

        if thread is None:
            self._encoded[steps] = encode()
            return
        with contextlib.suppress(RuntimeError):  # the device or Python is about to end, and with it the thread
            self._encoded[steps] = thread.submit(encode)

    def encode_steps(
        self, steps: int, layers_per_submit: int, stamps: Mapping[str, Any] | None, copies: "Sequence[native.Copy]"
    ) -> Iterator[Any]:
        """The command buffers of so many steps, each to be submitted once: one, or one for some layers each."""
        for one in self.record_steps(steps, layers_per_submit, stamps, copies):
            yield one.finish() if isinstance(one, native.Recording) else one

    def record_steps(
        self,
        steps: int,
        layers_per_submit: int,
        stamps: Mapping[str, Any] | None,
        copies: "Sequence[native.Copy]",
        before: "Sequence[native.Copy]" = (),
    ) -> Iterator[Any]:
        """The same as recordings, which another thread may finish; or finished, where the fallback must be used.

        Copies `before` stand at the begin of the first.
        """
        record = self.record if native.CAN_REPLAY else self.encode_public
        cuts = [0, *self.splits[layers_per_submit::layers_per_submit]] if layers_per_submit else [0]
        *earlier, final = itertools.pairwise([*cuts, len(self.dispatches)])
        for first, last in earlier:
            yield record(first, last, stamps, before=() if first else before)
        yield record(*final, stamps, copies, steps, () if earlier else before)

    def record(
        self,
        first: int = 0,
        last: int | None = None,
        stamps: Mapping[str, Any] | None = None,
        copies: "Sequence[native.Copy]" = (),
        steps: int = 1,
        before: "Sequence[native.Copy]" = (),
    ) -> "native.Recording":
        """What `encode` encodes, before wgpu checks and translates it."""
        each = [commands[first:last] for commands in self._programs[:steps]]
        return native.record(self.device.handle, each, copies, stamps, before)

    def encode(self, first: int = 0, last: int | None = None, steps: int = 1) -> "native.Encoded":
        """A command buffer of the dispatches: one compute pass, replayed through raw handles.

        No checks and no allocation by dispatch; wgpu checks the whole at its end.
        """
        return self.record(first, last, steps=steps).finish()

    def encode_public(
        self,
        first: int = 0,
        last: int | None = None,
        stamps: Mapping[str, Any] | None = None,
        copies: "Sequence[native.Copy]" = (),
        steps: int = 1,
        before: "Sequence[native.Copy]" = (),
    ) -> Any:
        """The same commands through wgpu-py's public API: the fallback, and what `encode` is held against."""
        encoder = self.device.handle.create_command_encoder()
        for copy in before:
            encoder.copy_buffer_to_buffer(*copy)
        compute = encoder.begin_compute_pass(timestamp_writes=stamps)
        for groups in self._groups[:steps]:
            for dispatch, group in zip(self.dispatches[first:last], groups[first:last], strict=True):
                compute.set_pipeline(dispatch.pipeline.handle)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*dispatch.grid)
        compute.end()
        for copy in copies:
            encoder.copy_buffer_to_buffer(*copy)
        return encoder.finish()

    def cost(self, rows: int, outputs: int, spans: Sequence[Span]) -> tuple[int, int]:
        """Bytes moved and flops of a whole step."""
        each = [dispatch.cost(rows, outputs, spans) for dispatch in self.dispatches]
        return sum(nbytes for nbytes, _ in each), sum(flops for _, flops in each)

    def part(self, name: str, rows: int, step: int = 0) -> Part:
        """Where the first rows of an output of a step of a submit lie."""
        output = self.outputs[name]
        place = output.place
        return place.buffer.handle, place.offset + step * place.apart, rows * output.row_bytes

    def read(self, name: str, rows: int) -> npt.NDArray[Any]:
        """The first rows of an output, once the GPU is done."""
        output = self.outputs[name]
        data = self.device.read(output.place.buffer, rows * output.row_bytes, output.place.offset)
        return np.frombuffer(data, output.dtype).reshape(rows, *output.shape[1:])


def _bind_group(device: Device, dispatch: Dispatch, step: int) -> Any:
    entries = [
        {"binding": n, "resource": {"buffer": s.buffer.handle, "offset": s.at(step), "size": s.nbytes}}
        for n, s in sorted(dispatch.bound.items())
    ]
    with native.typed_errors(f"binding {dispatch.name}"):
        return device.handle.create_bind_group(layout=dispatch.pipeline.layout, entries=entries)
