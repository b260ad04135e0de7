"""Compiles a model function to a plan: its ops become a graph, passes rewrite it, lowering turns it into dispatches."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from ..gpu.device import Buffer, Device
from ..gpu.plan import Plan, Slice
from ..gpu.shader import Constant
from ..gpu.weights import Weights
from ..kernels.tuning import Tuning
from .build import place_step, scratch_bytes
from .dispatch import UnplacedDispatch
from .graph import StepShape
from .lowering import lower
from .memory import MAX_SEGMENTS, NO_CACHES, Caches, Memory, Scratch
from .nodes import Kernel
from .passes import run_passes
from .sampler_state import GpuSamplerState
from .streaming import DIRECT_ROWS, streamed
from .target import Target
from .tracer import Tracer
from .values import Operand, Value
from .vocabulary import StateType


class Recorder(Tracer):
    """Records the calls of a model for steps of up to `rows` rows.

    The rows of a step belong to at most `max_segments` sequences, and at most `max_outputs` of them are picked. With
    `single`, every sequence of a step has one row; with `shared_pages`, several such rows may be consecutive positions
    of one sequence in the same pages. With `follows`, the device corrects positions. `without` names passes to skip.
    `slots` maps buffers of weights in main memory to GPU buffers: steps of many rows copy the weights there first.
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
        caches: Caches = NO_CACHES,
        single: bool = False,
        sampler_state: GpuSamplerState | None = None,
        without: Collection[str] = (),
        slots: Mapping[Buffer, Buffer] | None = None,
        shared_pages: bool = False,
        state_type: StateType = "f32",
        follows: bool = False,
    ) -> None:
        segments = min(rows, MAX_SEGMENTS) if max_segments is None else max_segments
        outputs = segments if max_outputs is None else max_outputs
        super().__init__(weights, StepShape(rows, single, segments, outputs, shared_pages, follows))
        self.device = device
        self.scratch = scratch
        self.tuning = tuning
        self.target = Target(device.capabilities, tuning, weights)
        self.memory = Memory(states or {}, caches, sampler_state, state_type)
        self.without = without
        self.slots = slots or {}
        self.fired: dict[str, int] = {}

    def kernel(
        self, shader: Sequence[str], constants: Mapping[str, Constant], operands: Mapping[str, Operand], groups: int
    ) -> None:
        """Appends a dispatch of a shader given by name, for probes of a device."""
        self._append(Kernel(tuple(shader), constants, operands, groups))

    def dispatches(self, outputs: Iterable[Value]) -> list[UnplacedDispatch]:
        """Runs the passes and lowers the graph. No op can be added afterwards."""
        self.graph.outputs = tuple(outputs)
        self.fired = run_passes(self.graph, self.target, self.without)
        dispatches = lower(self.graph, self.target, self.memory)
        if not self.slots or self.graph.shape.rows <= DIRECT_ROWS:
            return dispatches
        return list(streamed(dispatches, self.slots, self.target.can))

    def finish(self, outputs: Mapping[str, Value], steps: int = 1, each: Sequence[str] = ()) -> Plan:
        """Builds the plan. Up to `steps` steps can share a submit; each has its own copy of the outputs in `each`."""
        dispatches = self.dispatches(outputs.values())
        return place_step(self.device, self.weights, self.scratch, self.graph, dispatches, outputs, steps, each).plan()

    def scratch_bytes(self, outputs: Sequence[Value]) -> int:
        """Bytes of memory that intermediate values take."""
        return scratch_bytes(self.dispatches(outputs), outputs)


def finish_together(recorded: Sequence[tuple[Recorder, Mapping[str, Value]]]) -> list[Plan]:
    """Builds the plans of several recorders of one device, each with its outputs; all shaders compile in parallel."""
    lowered = [recorder.dispatches(outputs.values()) for recorder, outputs in recorded]
    for recorder, _ in recorded[:1]:
        recorder.device.pipelines.compile(one.linked for dispatches in lowered for one in dispatches)
    return [
        place_step(recorder.device, recorder.weights, recorder.scratch, recorder.graph, dispatches, outputs).plan()
        for (recorder, outputs), dispatches in zip(recorded, lowered, strict=True)
    ]
