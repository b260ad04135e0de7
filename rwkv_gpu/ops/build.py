"""Builds a plan from dispatches: memory for every value, pipelines and bind groups."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..gpu.device import Device
from ..gpu.liveness import Assignment, Lifetime, assign, separate_slots
from ..gpu.plan import Dispatch, Output, Plan, Slice, StepBuffer, fold
from ..gpu.weights import Weights
from .dispatch import UnplacedDispatch, lifetimes
from .graph import Graph
from .memory import Scratch
from .values import ALIGN, CachedTensor, JoinedVectors, UniformTable, Unplaced, Value, place

SEPARATE_BYTES = (
    32 << 20
)  # up to this many bytes, intermediates (all, or of overlapping dispatches) have separate memory


@dataclass(frozen=True)
class PlacedStep:
    """The dispatches of a step with memory for all values, and the other parts of its plan."""

    device: Device
    rows: int
    dispatches: Sequence[Dispatch]
    step: StepBuffer
    outputs: Mapping[str, Output]  # can be read after a run
    splits: Sequence[int]

    def plan(self) -> Plan:
        """The plan that runs these dispatches."""
        return Plan(self.device, self.rows, self.dispatches, self.step, self.outputs, self.splits)


def place_step(
    device: Device,
    weights: Weights,
    scratch: Scratch,
    graph: Graph,
    dispatches: Sequence[UnplacedDispatch],
    outputs: Mapping[str, Value],
    steps: int = 1,
    each: Sequence[str] = (),
) -> PlacedStep:
    """Gives every value of some dispatches its memory, and every dispatch its pipeline.

    Up to `steps` steps can share a submit; each has its own copy of the outputs in `each`. If dispatches overlap, a
    submit has one step: the next step would use the same memory, so its dispatches would have to wait.
    """
    lives = lifetimes(dispatches, outputs.values())
    if not device.capabilities.software and any(life.overlapping for life in lives.values()):
        steps = 1
    inputs = {name: (value.dtype, value.shape) for name, value in graph.inputs.items()}
    device.compile(one.linked for one in dispatches)
    step_buffer = StepBuffer(device, inputs, graph.shape.rows, steps)
    own: dict[Unplaced, Slice] = {outputs[name]: _results(device, outputs[name], steps) for name in each}
    lives = {value: life for value, life in lives.items() if value not in own}
    assignment = _assigned(list(lives.values()))
    buffers = scratch.take(assignment.sizes)
    places = _tables(device, dispatches) | _derived(weights, dispatches)
    places.update((value, step_buffer.slice(value.name)) for value in graph.inputs.values())
    for value, slot in zip(lives, assignment.slots, strict=True):
        places[value] = Slice(buffers[slot], 0, value.nbytes)
    places.update(own)
    placed = [_placed(device, one, places, step_buffer.uniform(one.picked)) for one in dispatches]
    readable = {name: Output(place(v, places), v.dtype, v.shape) for name, v in outputs.items()}
    return PlacedStep(device, graph.shape.rows, placed, step_buffer, readable, _layer_starts(dispatches))


def scratch_bytes(dispatches: Sequence[UnplacedDispatch], outputs: Iterable[Value]) -> int:
    """Bytes of memory that the intermediates of dispatches take."""
    return _assigned(list(lifetimes(dispatches, outputs).values())).nbytes


def _placed(device: Device, one: UnplacedDispatch, places: Mapping[Unplaced, Slice], uniform: Slice) -> Dispatch:
    bound = {0: uniform}
    for number, operand in one.operands.items():
        if isinstance(operand, Value):
            assert operand.root in places, f"{one.name} reads a value that no dispatch writes"
            bound[number] = place(operand, places)
        else:
            bound[number] = operand if isinstance(operand, Slice) else places[operand]
    grid = fold(one.groups, device.capabilities.max_workgroups)
    moved = one.fixed_bytes, one.row_bytes, one.row_flops
    pipeline = device.pipeline(one.linked)
    return Dispatch(one.name, pipeline, bound, grid, *moved, one.picked, one.context_cost)


def _results(device: Device, value: Value, steps: int) -> Slice:
    """Memory for the outputs of each step of a submit."""
    stride = -(-value.nbytes // ALIGN) * ALIGN
    return Slice(device.buffer(steps * stride, "results"), 0, value.nbytes, stride)


def _assigned(lives: Sequence[Lifetime]) -> Assignment:
    """Assigns separate slots if that takes little memory, as in decode: wgpu serialises all uses of one buffer."""
    each = separate_slots(lives)
    return each if each.nbytes <= SEPARATE_BYTES else assign(lives, SEPARATE_BYTES)


def _tables(device: Device, dispatches: Sequence[UnplacedDispatch]) -> dict[Unplaced, Slice]:
    """All uniform tables of the plan, in one buffer."""
    operands = (operand for one in dispatches for operand in one.operands.values())
    every = dict.fromkeys(operand for operand in operands if isinstance(operand, UniformTable))
    starts, packed = [], np.zeros(0, np.uint32)
    for table in every:
        starts.append(packed.nbytes)
        padding = np.zeros(-len(table.words) % (ALIGN // 4), np.uint32)
        packed = np.concatenate([packed, np.array(table.words, np.uint32), padding])
    if not every:
        return {}
    buffer = device.buffer(packed.nbytes, "tables", uniform=True)
    device.write(buffer, packed)
    return {table: Slice(buffer, at, 4 * len(table.words)) for table, at in zip(every, starts, strict=True)}


def _derived(weights: Weights, dispatches: Sequence[UnplacedDispatch]) -> dict[Unplaced, Slice]:
    """Memory for data derived from parameters: joined vectors, and tensors that are computed once."""
    found: dict[Unplaced, Slice] = {}
    for operand in dict.fromkeys(operand for one in dispatches for operand in one.operands.values()):
        if isinstance(operand, JoinedVectors):
            found[operand] = weights.joined(operand.names, operand.lengths)
        elif isinstance(operand, CachedTensor):
            found[operand] = weights.computed(operand.key, operand.make)
    return found


def _layer_starts(dispatches: Sequence[UnplacedDispatch]) -> list[int]:
    """The indices of dispatches that start a layer."""
    layers = [None, *(one.layer for one in dispatches)]
    return [i for i, one in enumerate(dispatches) if one.layer is not None and one.layer != layers[i]]
