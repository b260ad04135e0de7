"""What every recorded op shares: dispatches that have no buffers yet, and the plan at the end."""

import contextlib
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..gpu.cost import NO_CONTEXT_COST, ContextCost
from ..gpu.device import Buffer, Device
from ..gpu.liveness import Assignment, Life, apart, assign
from ..gpu.plan import Dispatch, Grid, Output, Plan, Slice, StepBuffer
from ..gpu.shader import Constant
from ..gpu.weights import Weights
from ..kernels.registry import link
from ..kernels.tuning import Tuning
from .held import Held
from .mixing import MIXING_BUFFERS, Told
from .sampler_state import GpuSamplerState
from .step import WRITTEN, Step, lifetimes, together
from .values import ALIGN, Computed, Integers, Operand, Unplaced, Value, Vectors, Words, place, stack
from .vocabulary import Weight

ROOMY = 32 << 20  # bytes of intermediates that need not share memory: all, or those that overlap
MAX_SEGMENTS = 64  # sequences in one step, where nothing else is said


@dataclass(frozen=True)
class Caches:
    """Where keys and values lie, by cache, how they are stored, and how many pages one sequence may have."""

    places: Mapping[str, tuple[Slice, Slice]]
    kind: str  # f16, or f32
    max_pages: int


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


class Recording:
    """Collects dispatches for up to `rows` rows; `finish` gives the plan. Knows shaders by name, no op.

    The rows of a step belong to at most `max_segments` sequences, and at most `max_outputs` of them are picked. In a
    `single` plan every sequence of a step has one row.
    """

    def __init__(
        self,
        device: Device,
        weights: Weights,
        rows: int,
        scratch: Scratch,
        tuning: Tuning,
        states: Mapping[str, Slice] | None = None,
        max_segments: int | None = None,
        max_outputs: int | None = None,
        caches: Caches | None = None,
        single: bool = False,
        sampler_state: GpuSamplerState | None = None,
    ) -> None:
        self.device = device
        self.weights = weights
        self.rows = rows
        self.scratch = scratch
        self.tuning = tuning
        self.states = states or {}
        self.caches = caches or Caches({}, "f32", 0)
        self.single = single
        self.sampler_state = sampler_state
        self.max_segments = min(rows, MAX_SEGMENTS) if max_segments is None else max_segments
        self.max_outputs = self.max_segments if max_outputs is None else max_outputs
        self._max_rows = rows
        self._picked = False
        self._steps: list[Step] = []
        self._inputs: dict[str, Value] = {}
        self._splits: list[int] = []
        self._prefix = ""
        self._held: dict[Value, Held] = {}  # by what it writes
        self._told: dict[Value, Told] = {}  # moments of rows that products have told
        self._norms: dict[tuple[Value, str], Value] = {}  # what kernels read that cannot norm on the way
        self._integers: dict[Hashable, Integers] = {}  # likewise, what linear_dot reads
        self._sorted: dict[tuple[Value, int], tuple[Value, Value]] = {}  # choices of experts, likewise

    def input(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Value:
        """A tensor that every step uploads; the same one when asked for again."""
        return self._inputs.setdefault(name, Value(shape, dtype, name))

    @property
    def segments(self) -> Value:
        """Of each sequence in the step: first row, count, start position, states to read and to write. [S, 5]"""
        return self.input("segments", np.uint32, (self.max_segments, 5))

    @property
    def alone(self) -> bool:
        """Whether a step has but one row."""
        return self._max_rows == 1

    @property
    def tells(self) -> bool:
        """Whether products tell moments of the rows that they add to, for others that mix those."""
        return self.tuning.fuses_token_shift and self.device.capabilities.max_storage_buffers >= MIXING_BUFFERS + 2

    @contextlib.contextmanager
    def layer(self, index: int) -> Iterator[None]:
        self._splits.append(len(self._steps))
        self._prefix = f"blk.{index}/"
        yield
        self.settle()
        self._prefix = ""

    def hold(self, held: Held) -> None:
        """Waits with a dispatch until somebody needs what it does."""
        self.settle(other for other in self._held.values() if other.state and other.state == held.state)
        self._held[held.writes] = held

    def held(self, value: Value) -> Held | None:
        """The dispatch that would write a value, where it is held back."""
        return self._held.get(value.root)

    def take(self, held: Held) -> None:
        """All that a dispatch does is done elsewhere: it is not recorded."""
        del self._held[held.writes]

    def every_held(self) -> list[Held]:
        """All that is held back."""
        return list(self._held.values())

    def settle(self, some: Iterable[Held] | None = None) -> None:
        """Records what is held back, all of it or some, as it is."""
        for held in list(self._held.values() if some is None else some):
            if held.writes in self._held:
                self.take(held)
                held.record()

    def finish(self, outputs: Mapping[str, Value], steps: int = 1, each: Sequence[str] = ()) -> Plan:
        """Memory for every value, bind groups for every step; `outputs` can be read after a run.

        So many steps can share a submit; each has the outputs that `each` names for itself. Where dispatches
        overlap, it is one: they would wait for those of the step before, which used their memory.
        """
        self.settle()
        device = self.device
        lives = lifetimes(self._steps, outputs.values())
        if not device.capabilities.software and any(life.overlapping for life in lives.values()):
            steps = 1
        inputs = {name: (v.dtype, v.shape) for name, v in self._inputs.items()}
        step_buffer = StepBuffer(device, inputs, self._max_rows, steps)
        own: dict[Unplaced, Slice] = {outputs[name]: self._results(outputs[name], steps) for name in each}
        lives = {value: life for value, life in lives.items() if value not in own}
        assignment = self._assigned(list(lives.values()))
        buffers = self.scratch.take(assignment.sizes)
        places: dict[Unplaced, Slice] = dict(self._upload_words().items())
        for operand in {o for step in self._steps for o in step.operands.values()}:
            if isinstance(operand, Vectors):
                places[operand] = self.weights.joined(operand.names, operand.lengths)
            elif isinstance(operand, Computed):
                places[operand] = self.weights.computed(operand.key, operand.make)
        places.update((value, step_buffer.slice(value.name)) for value in self._inputs.values())
        for value, slot in zip(lives, assignment.slots, strict=True):
            places[value] = Slice(buffers[slot], 0, value.nbytes)
        places.update(own)
        dispatches = [self._dispatched(step, places, step_buffer.uniform(step.picked)) for step in self._steps]
        readable = {name: Output(place(v, places), v.dtype, v.shape) for name, v in outputs.items()}
        return Plan(device, self._max_rows, dispatches, step_buffer, readable, self._splits)

    def _dispatched(self, step: Step, places: Mapping[Unplaced, Slice], uniform: Slice) -> Dispatch:
        bound = {0: uniform}
        for number, operand in step.operands.items():
            if isinstance(operand, Value):
                assert operand.root in places, f"{step.name} reads what nothing writes"
                bound[number] = place(operand, places)
            else:
                bound[number] = operand if isinstance(operand, Slice) else places[operand]
        grid = fold(step.groups, self.device.capabilities.max_workgroups)
        moved = step.fixed_bytes, step.row_bytes, step.row_flops
        pipeline = self.device.pipeline(step.linked)
        return Dispatch(step.name, pipeline, bound, grid, *moved, step.picked, step.context_cost)

    def _results(self, value: Value, steps: int) -> Slice:
        """Memory for what each step of a submit gives."""
        apart = -(-value.nbytes // ALIGN) * ALIGN
        return Slice(self.device.buffer(steps * apart, "results"), 0, value.nbytes, apart)

    def scratch_bytes(self, outputs: Iterable[Value]) -> int:
        """The memory that intermediates would take if the plan ended here."""
        self.settle()
        return self._assigned(list(lifetimes(self._steps, outputs).values())).nbytes

    def _assigned(self, lives: Sequence[Life]) -> Assignment:
        """Slots of their own where that takes little memory, as in decode: wgpu orders all that touches one buffer."""
        each = apart(lives)
        return each if each.nbytes <= ROOMY else assign(lives, ROOMY)

    def _upload_words(self) -> dict[Words, Slice]:
        """All constants of the plan, in one buffer."""
        every = dict.fromkeys(o for step in self._steps for o in step.operands.values() if isinstance(o, Words))
        starts, packed = [], np.zeros(0, np.uint32)
        for words in every:
            starts.append(packed.nbytes)
            padding = np.zeros(-len(words.words) % (ALIGN // 4), np.uint32)
            packed = np.concatenate([packed, np.array(words.words, np.uint32), padding])
        if not every:
            return {}
        buffer = self.device.buffer(packed.nbytes, "tables", uniform=True)
        self.device.write(buffer, packed)
        return {words: Slice(buffer, at, 4 * len(words.words)) for words, at in zip(every, starts, strict=True)}

    def vector(self, weight: Weight) -> Slice:
        """A float32 parameter as kernels read it whole."""
        [shard] = self.weights[weight.name].shards
        return shard.slice

    def record(
        self,
        name: str,
        shader: Sequence[str],
        constants: Mapping[str, Constant],
        operands: Mapping[str, Operand],
        *,
        groups: int,
        fixed_bytes: int | None = None,
        row_bytes: int = 0,
        row_flops: int = 0,
        context_cost: ContextCost = NO_CONTEXT_COST,
        shared_bytes: int | None = None,
    ) -> None:
        """One dispatch of `groups` workgroups; `shader` is the kernel and its parts, operands go by binding name.

        The rows of its values are counted as moved; `row_bytes` are those of a row beyond them.
        """
        kernel, *parts = shader
        linked = link(kernel, parts, constants)
        bindings = linked.bindings()
        numbers = {binding.name: number for number, binding in bindings.items() if number}
        assert numbers.keys() == operands.keys(), f"{linked.name} binds {sorted(numbers)}, given {sorted(operands)}"
        written = {number for number, binding in bindings.items() if binding.access == WRITTEN}
        self.settle(self._before(operands, {name for name, number in numbers.items() if number in written}))
        weights = sum(operand.nbytes for operand in operands.values() if isinstance(operand, Slice))
        self._steps.append(
            Step(
                name=self._prefix
                + " ".join(filter(None, [_short(name), kernel.rpartition("/")[2] + _format_suffix(parts)])),
                linked=linked,
                bindings=bindings,
                operands={numbers[which]: operand for which, operand in operands.items()},
                groups=groups,
                fixed_bytes=weights if fixed_bytes is None else fixed_bytes,
                row_bytes=row_bytes + sum(o.row_bytes for o in operands.values() if isinstance(o, Value)),
                row_flops=row_flops,
                picked=self._picked,
                context_cost=context_cost,
                shared_bytes=shared_bytes,
            )
        )

    @contextlib.contextmanager
    def merged(self) -> Iterator[None]:
        """What is recorded meanwhile may run side by side: as one dispatch, as far as one can hold it."""
        first = len(self._steps)
        yield
        steps, self._steps[first:] = self._steps[first:], []
        for step in steps:
            can = self.device.capabilities
            both = together(self._steps[-1], step, can) if len(self._steps) > first else None
            self._steps[len(self._steps) - bool(both) :] = [both or step]

    def _before(self, operands: Mapping[str, Operand], written: Iterable[str]) -> list[Held]:
        """What must be recorded before a dispatch of these operands, some of which it writes."""
        read = {operand.root for operand in operands.values() if isinstance(operand, Value)}
        replaced = [operands[name] for name in written]
        return [held for held in self._held.values() if held.writes in read or held.state in replaced]

    def copied(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """The same values in one stack."""
        _, parts = stack(self.rows, [value.shape[1] for value in values])
        lanes = self.tuning.map_lanes
        for value, part in zip(values, parts, strict=True):
            width = part.shape[1]
            groups = -(-self.rows * width // (4 * lanes))
            constants: dict[str, Constant] = {"D": width, "WG": lanes}
            self.record("", ("dense/copy_rows", "lib/lanes/plain"), constants, {"x": value, "y": part}, groups=groups)
        return parts

    def continue_picked(self) -> None:
        """What is recorded from here on has the picked rows only."""
        assert not self._picked, "rows are picked once"
        self.settle()
        self._picked = True
        self.rows = self.max_outputs


def fold(groups: int, limit: int) -> Grid:
    """A grid of at least `groups` workgroups that keeps under the limit of each dimension."""
    if groups <= limit:
        return groups, 1, 1
    rows = -(-groups // limit)
    return -(-groups // rows), rows, 1


def _short(name: str) -> str:
    """`blk.3.ffn_key.weight` is `ffn_key` inside block 3; of several, joined by +, each."""
    return "+".join(re.sub(r"^blk\.\d+\.", "", one).removesuffix(".weight") for one in name.split("+"))


def _format_suffix(parts: Sequence[str]) -> str:
    formats = [part.removeprefix("formats/") for part in parts if part.startswith("formats/")]
    return f".{formats[0]}" if formats else ""
