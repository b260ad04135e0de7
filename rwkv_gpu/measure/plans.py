"""A recorded step as data: each dispatch with its op, and each pass with what it saves. Runs nothing."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.adapters import NO_ADAPTERS, Adapters, upload_factors
from ..engine.cache.config import CacheConfig
from ..engine.parameters import parameters_of
from ..errors import BadInput
from ..gguf.file import GGUFFile
from ..gpu.cost import Span
from ..gpu.device import Capabilities
from ..gpu.loader import place_weights
from ..gpu.plan import Slice
from ..gpu.virtual import VirtualDevice
from ..kernels.tuning import Tuning
from ..models.registry import load_model
from ..ops.adapted import AdaptedOps
from ..ops.dispatch import UnplacedDispatch
from ..ops.graph import Graph
from ..ops.kv_format import KVType
from ..ops.memory import MAX_SEGMENTS, Caches, Scratch
from ..ops.passes import PASSES, REQUIRED
from ..ops.recorder import Recorder
from ..ops.sampler_state import GpuSamplerState
from ..ops.values import CachedTensor, JoinedVectors, Operand, UniformTable, Value
from ..ops.vocabulary import StateType


@dataclass(frozen=True)
class Step:
    """The step to record: its rows, and whether they belong to one sequence, as in a prompt."""

    rows: int
    prefill: bool = False
    kv: KVType = "f16"
    context: int | None = None
    states: StateType = "f32"

    @property
    def spans(self) -> list[Span]:
        """The spans of its sequences, which begin at their start."""
        return [(0, self.rows)] if self.prefill else [(0, 1)] * self.rows


@dataclass(frozen=True)
class DispatchRow:
    """One dispatch."""

    layer: int | None
    op: str  # op of the graph, with what passes have fused into it
    name: str  # parameters, kernel and format
    kernel: str  # including its parts
    workgroups: int
    nbytes: int  # bytes moved
    bindings: dict[str, str]  # the buffer and offset of each binding of the shader


@dataclass(frozen=True)
class PassRow:
    """A pass: how often it fired, and the additional cost of the step without it."""

    name: str
    about: str
    fired: int
    dispatches: int
    nbytes: int
    left_out: bool


@dataclass(frozen=True)
class RecordedStep:
    """A step with all its dispatches."""

    dispatches: tuple[DispatchRow, ...]
    passes: tuple[PassRow, ...]
    graph: str  # text of the graph after all passes

    @property
    def nbytes(self) -> int:
        """Bytes moved by the whole step."""
        return sum(row.nbytes for row in self.dispatches)

    def as_data(self) -> dict[str, Any]:
        """Converts the step to JSON-compatible data."""
        return {
            "passes": [vars(row) for row in self.passes],
            "dispatches": [vars(row) for row in self.dispatches],
            "nbytes": self.nbytes,
        }


def record_step(
    file: GGUFFile,
    can: Capabilities,
    tuning: Tuning,
    step: Step,
    without: Collection[str] = (),
    adapters: Adapters = NO_ADAPTERS,
) -> RecordedStep:
    """Records the step as a device with these capabilities would run it."""
    if not step.prefill and step.rows > MAX_SEGMENTS:
        raise BadInput(f"a step has {MAX_SEGMENTS} sequences at most; for more rows of one prompt, use --prefill")
    dispatches, recorder = dispatches_of(file, can, tuning, step, without, adapters)
    rows = tuple(_row(one, recorder.graph, step) for one in dispatches)
    total = len(rows), sum(row.nbytes for row in rows)
    passes = []
    for one in PASSES:
        saved, fired = (0, 0), recorder.fired.get(one.name, 0)
        if fired and one.name not in REQUIRED:
            other, own = dispatches_of(file, can, tuning, step, {*without, one.name}, adapters)
            moved = sum(_row(dispatch, own.graph, step).nbytes for dispatch in other)
            saved = len(other) - total[0], moved - total[1]
        passes.append(PassRow(one.name, one.about, fired, *saved, left_out=one.name in without))
    return RecordedStep(rows, tuple(passes), recorder.graph.text())


def shader_of(
    file: GGUFFile,
    can: Capabilities,
    tuning: Tuning,
    step: Step,
    without: Collection[str] = (),
    adapters: Adapters = NO_ADAPTERS,
    *,
    number: int,
) -> str:
    """The linked WGSL of a dispatch, by its number in the step."""
    dispatches, _ = dispatches_of(file, can, tuning, step, without, adapters)
    if not 0 <= number < len(dispatches):
        raise BadInput(f"there is no dispatch {number}: the step has numbers 0 to {len(dispatches) - 1}")
    return dispatches[number].linked.listing()


def dispatches_of(
    file: GGUFFile,
    can: Capabilities,
    tuning: Tuning,
    step: Step,
    without: Collection[str] = (),
    adapters: Adapters = NO_ADAPTERS,
) -> tuple[Sequence[UnplacedDispatch], Recorder]:
    """The dispatches of a step that samples a token per sequence, with placeholder buffers."""
    file.separate = adapters.separate
    device, model = VirtualDevice(can), load_model(file)
    sequences = 1 if step.prefill else step.rows
    config = CacheConfig.of(model, slots=sequences, kv=step.kv, states=step.states, context=step.context)
    weights = place_weights(device, parameters_of(file, model), lambda nbytes, _: device.buffer(nbytes, "weights"))

    def slice_of(nbytes: int, purpose: str) -> Slice:
        return Slice(device.buffer(nbytes, purpose), 0, nbytes)

    states = {state.name: slice_of(config.state_bytes(state), state.name) for state in model.states}
    caches = {
        cache.name: tuple(slice_of(config.nbytes(cache), what) for what in cache.stored) for cache in model.caches
    }
    recorder = Recorder(
        device, weights, step.rows, Scratch(device), tuning, states,
        max_segments=sequences, max_outputs=sequences,
        caches=Caches(caches, config.kind, config.max_pages, config.context, config.windows(model.caches)),
        single=not step.prefill, sampler_state=GpuSamplerState(device, sequences, model.vocabulary), without=without,
        state_type=config.state_type,
    )  # fmt: skip
    factors, values = adapters.factors(model)
    upload_factors(device, weights, values)
    scales = recorder.input("adapters", np.float32, (step.rows, adapters.rank)) if factors else None
    ops = AdaptedOps(recorder, factors, scales) if factors else recorder
    logits = model.forward(ops, recorder.input("ids", np.uint32, (step.rows,)))
    chosen = recorder.sample(logits, how="any" if step.prefill else "plain")
    return recorder.dispatches([logits, chosen]), recorder


def _row(one: UnplacedDispatch, graph: Graph, step: Step) -> DispatchRow:
    outputs = 1 if step.prefill else step.rows
    nbytes, _ = one.context_cost.cost(step.spans)
    nbytes += one.fixed_bytes + (outputs if one.picked else step.rows) * one.row_bytes
    bindings = {one.bindings[number].name: _shown(operand, graph) for number, operand in one.operands.items()}
    return DispatchRow(
        one.layer,
        one.op,
        one.name.rpartition("/")[2],
        one.linked.name,
        one.groups,
        nbytes,
        dict(sorted(bindings.items())),
    )


def _shown(operand: Operand, graph: Graph) -> str:
    """Describes a binding: a value by its number in the graph, or a buffer by its purpose."""
    if isinstance(operand, Value):
        parts = [name for value, name in graph.names.items() if value.root is operand and value is not operand]
        return "|".join(parts) or graph.name(operand)
    if isinstance(operand, Slice):
        return operand.buffer.purpose + (f"+{operand.offset}" if operand.offset else "")
    if isinstance(operand, UniformTable):
        return f"table of {len(operand.words)} words"
    if isinstance(operand, JoinedVectors):
        return "+".join(name for name in operand.names if name)
    assert isinstance(operand, CachedTensor)
    return str(operand.key[0] if isinstance(operand.key, tuple) else operand.key)
