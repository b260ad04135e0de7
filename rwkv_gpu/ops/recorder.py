"""Ops to plan steps: each call chooses a shader, its constants and its grid, and runs nothing."""

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..gpu.device import Buffer, Device
from ..gpu.liveness import Life, assign
from ..gpu.plan import Dispatch, Grid, Output, Plan, Slice, StepBuffer
from ..gpu.shader import Constant, Pipeline, link
from ..gpu.tuning import Tuning
from ..gpu.weights import DeviceWeight
from .vocabulary import Activation, Weight


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the plan: known by shape while recording, given memory at the end. [rows, ...]"""

    shape: tuple[int, ...]
    dtype: npt.DTypeLike = np.float32
    name: str = ""  # of an input

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, in whole vec4s."""
        return max(16, -(-self.shape[0] * self.row_bytes // 16) * 16)


@dataclass(frozen=True)
class Step:
    """A dispatch whose values have no memory yet."""

    name: str
    pipeline: Pipeline
    operands: Mapping[int, Value | Slice]  # by binding number
    grid: Grid
    fixed_bytes: int
    row_bytes: int
    row_flops: int


class Scratch:
    """Buffers that plans of one device share for their intermediates: plans run one after the other."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.buffers: list[Buffer] = []

    def take(self, sizes: Sequence[int]) -> list[Buffer]:
        """A buffer for each size, each used once: the tightest that fits, else a new one."""
        free = sorted(self.buffers, key=lambda buffer: buffer.nbytes)
        taken: dict[int, Buffer] = {}
        for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
            fits = next((buffer for buffer in free if buffer.nbytes >= sizes[index]), None)
            if fits is None:
                fits = self._device.buffer(sizes[index], "scratch")
                self.buffers.append(fits)
            else:
                free.remove(fits)
            taken[index] = fits
        return [taken[index] for index in range(len(sizes))]


@dataclass
class Recorder:
    """Records what a model says for up to `rows` rows; `finish` gives the plan."""

    device: Device
    weights: Mapping[str, DeviceWeight]
    rows: int
    scratch: Scratch
    tuning: Tuning
    _steps: list[Step] = field(default_factory=list)
    _inputs: dict[str, Value] = field(default_factory=dict)
    _splits: list[int] = field(default_factory=list)
    _prefix: str = ""

    def input(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Value:
        """A tensor that every step uploads."""
        value = self._inputs[name] = Value(shape, dtype, name)
        return value

    @contextlib.contextmanager
    def layer(self, index: int) -> Iterator[None]:
        self._splits.append(len(self._steps))
        self._prefix = f"blk.{index}/"
        yield
        self._prefix = ""

    def embed(self, weight: Weight, ids: Value) -> Value:
        table = self.weights[weight.name]
        width = weight.shape[1]
        y = Value((self.rows, width))
        self._record(
            weight.name,
            ("embed", f"format/{table.format}", "lanes/plain"),
            {"D": width, "WG": self.tuning.map_lanes},
            {"w": table.slice, "ids": ids, "y": y},
            groups=self.rows,
            fixed_bytes=0,
        )
        return y

    def layer_norm(self, x: Value, weight: Weight, bias: Weight, eps: float) -> Value:
        return self._norm("norm_layer", x, {"weight": weight, "bias": bias}, eps)

    def rms_norm(self, x: Value, weight: Weight, eps: float) -> Value:
        return self._norm("norm_rms", x, {"weight": weight}, eps)

    def linear(
        self,
        x: Value,
        weight: Weight,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        add: Value | None = None,
    ) -> Value:
        matrix = self.weights[weight.name]
        out, width = weight.shape
        y = Value((self.rows, out))
        operands: dict[str, Value | Slice] = {"w": matrix.slice, "x": x, "y": y}
        if bias is not None:
            operands["bias"] = self.weights[bias.name].slice
        if add is not None:
            operands["residual"] = add
        self._record(
            weight.name,
            (
                "linear_vec",
                f"format/{matrix.format}",
                "x/vec4" if width % 4 == 0 else "x/scalar",
                f"then/{then}",
                "bias/vector" if bias else "bias/none",
                "residual/rows" if add else "residual/none",
                f"lanes/{self.tuning.reduce}",
            ),
            {"K": width, "M": out, "WG": self.tuning.row_lanes},
            operands,
            groups=out * self.rows,
            row_flops=2 * out * width,
        )
        return y

    def activate(self, x: Value, then: Activation) -> Value:
        return self._map(("map_unary", f"then/{then}", "lanes/plain"), {"x": x})

    def add(self, x: Value, y: Value) -> Value:
        return self._map(("map_binary", "binary/add", "lanes/plain"), {"x": x, "z": y})

    def mul(self, x: Value, y: Value) -> Value:
        return self._map(("map_binary", "binary/mul", "lanes/plain"), {"x": x, "z": y})

    def softmax(self, x: Value) -> Value:
        return self._by_row("softmax", Value(x.shape), x)

    def argmax(self, x: Value) -> Value:
        return self._by_row("argmax", Value((self.rows,), np.uint32), x)

    def finish(self, outputs: Mapping[str, Value]) -> Plan:
        """Memory for every value, bind groups for every step; `outputs` can be read after a run."""
        device = self.device
        step_buffer = StepBuffer(device, {name: (v.dtype, v.shape) for name, v in self._inputs.items()})
        lives = lifetimes(self._steps, outputs.values())
        assignment = assign(list(lives.values()))
        buffers = self.scratch.take(assignment.sizes)
        places: dict[Value, Slice] = {value: step_buffer.slice(value.name) for value in self._inputs.values()}
        for value, slot in zip(lives, assignment.slots, strict=True):
            places[value] = Slice(buffers[slot], 0, value.nbytes)
        dispatches = [_place(step, places, step_buffer.uniform()) for step in self._steps]
        readable = {name: Output(places[v], v.dtype, v.shape) for name, v in outputs.items()}
        return Plan(device, self.rows, dispatches, step_buffer, readable, self._splits)

    def _norm(self, kernel: str, x: Value, vectors: Mapping[str, Weight], eps: float) -> Value:
        y = Value(x.shape)
        operands: dict[str, Value | Slice] = {"x": x, "y": y}
        operands.update({name: self.weights[vector.name].slice for name, vector in vectors.items()})
        return self._by_row(kernel, y, x, operands, {"EPS": float(eps)}, vectors["weight"].name)

    def _by_row(
        self,
        kernel: str,
        y: Value,
        x: Value,
        operands: Mapping[str, Value | Slice] | None = None,
        constants: Mapping[str, Constant] | None = None,
        name: str = "",
    ) -> Value:
        """A workgroup for each row, reduced over its lanes."""
        tuning = self.tuning
        self._record(
            name,
            (kernel, f"lanes/{tuning.reduce}"),
            {"D": x.shape[1], "WG": tuning.row_lanes, **(constants or {})},
            operands or {"x": x, "y": y},
            groups=self.rows,
        )
        return y

    def _map(self, shader: tuple[str, ...], inputs: Mapping[str, Value]) -> Value:
        x = inputs["x"]
        y = Value(x.shape)
        size = self.tuning.map_lanes
        constants = {"D": x.shape[1], "WG": size}
        self._record("", shader, constants, {**inputs, "y": y}, groups=-(-math.prod(x.shape) // size))
        return y

    def _record(
        self,
        name: str,
        shader: tuple[str, ...],
        constants: Mapping[str, Constant],
        operands: Mapping[str, Value | Slice],
        *,
        groups: int,
        fixed_bytes: int | None = None,
        row_flops: int = 0,
    ) -> None:
        """One dispatch of `groups` workgroups; `shader` is the kernel and its parts."""
        kernel, *parts = shader
        pipeline = self.device.pipeline(link(kernel, [*parts, "step"], constants))
        numbers = {binding.name: number for number, binding in pipeline.bindings.items() if number}
        assert numbers.keys() == operands.keys(), f"{pipeline.name} binds {sorted(numbers)}, given {sorted(operands)}"
        weights = sum(operand.nbytes for operand in operands.values() if isinstance(operand, Slice))
        self._steps.append(
            Step(
                name=self._prefix + " ".join(filter(None, [_short(name), kernel + _format_suffix(parts)])),
                pipeline=pipeline,
                operands={numbers[which]: operand for which, operand in operands.items()},
                grid=fold(groups, self.device.capabilities.max_workgroups),
                fixed_bytes=weights if fixed_bytes is None else fixed_bytes,
                row_bytes=sum(operand.row_bytes for operand in operands.values() if isinstance(operand, Value)),
                row_flops=row_flops,
            )
        )


def fold(groups: int, limit: int) -> Grid:
    """A grid of at least `groups` workgroups that keeps under the limit of each dimension."""
    if groups <= limit:
        return groups, 1, 1
    rows = -(-groups // limit)
    return -(-groups // rows), rows, 1


def lifetimes(steps: Sequence[Step], outputs: Iterable[Value]) -> dict[Value, Life]:
    """When each intermediate is first written and last read; an output lives to the end."""
    born: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for index, step in enumerate(steps):
        for number, operand in step.operands.items():
            if isinstance(operand, Value):
                last[operand] = index
                if step.pipeline.bindings[number].access == "read_write":
                    born.setdefault(operand, index)
    last.update(dict.fromkeys(outputs, len(steps)))
    return {value: Life(value.nbytes, first, last[value]) for value, first in born.items()}


def _place(step: Step, places: Mapping[Value, Slice], uniform: Slice) -> Dispatch:
    bound = {n: places[operand] if isinstance(operand, Value) else operand for n, operand in step.operands.items()}
    return Dispatch(
        step.name, step.pipeline, {0: uniform, **bound}, step.grid, step.fixed_bytes, step.row_bytes, step.row_flops
    )


def _short(name: str) -> str:
    """`blk.3.ffn_key.weight` is `ffn_key` inside block 3."""
    return re.sub(r"^blk\.\d+\.", "", name).removesuffix(".weight")


def _format_suffix(parts: Sequence[str]) -> str:
    return "".join("." + part.removeprefix("format/") for part in parts if part.startswith("format/"))
