"""Records the plans of a model for WebGPU's default limits, as data: shaders, buffers, dispatches.

Plans come in variants: for devices with wide subgroups, with any, and with none.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..engine.cache.config import CacheConfig
from ..engine.cache.kv import names
from ..engine.parameters import parameters_of
from ..errors import UnsupportedModel
from ..gguf.file import GGUFFile
from ..gpu.device import Buffer, Capabilities
from ..gpu.loader import Place, place_weights, write_weights
from ..gpu.plan import Output, Slice
from ..gpu.shader import COMMENT
from ..gpu.virtual import DEFAULT, HostDevice
from ..kernels.defaults import default_tuning
from ..kernels.tuning import Tuning
from ..models.registry import Model
from ..ops.build import PlacedStep, place_step
from ..ops.memory import Caches, Scratch
from ..ops.recorder import Recorder
from ..ops.sampler_state import GpuSamplerState

STATES = 2  # copies of each state: a step reads one, and writes the other
DECODE = 1  # rows of the plan for decode
PREFILL = (16, 128)  # rows of the plans for prompts
INTEGER_DOT = "packed_4x8_integer_dot_product"  # WGSL's name of the extension
SUBGROUPS = (0, 4, 32)  # minimum subgroup size of a device for each variant; 0: no subgroups needed
CONFORMING = {
    "lanes_per_key": 0, "reduce": "workgroup", "row_lanes": 64, "merged_rows": 0, "merged_batch_rows": 0,
    "fuses_routing": False,
}  # fmt: skip
USES_SUBGROUPS = re.compile(r"\bsubgroup[A-Z]\w*\(|builtin\(subgroup_")
ENABLE_SUBGROUPS = "enable subgroups;\n"


@dataclass
class Recorded:
    """A recorded model: the device with all data, and the parts of the manifest that describe it."""

    device: HostDevice
    config: CacheConfig
    shaders: list[dict[str, Any]] = field(default_factory=list)
    variants: list[dict[str, Any]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    caches: list[dict[str, Any]] = field(default_factory=list)
    sampler: dict[str, Any] = field(default_factory=dict)

    @property
    def buffers(self) -> list[Buffer]:
        """All buffers, in the order in which plans number them."""
        return self.device.buffers

    def add_variant(self, subgroup: int, plans: list[dict[str, Any]]) -> None:
        """Adds plans for devices with subgroups of this many lanes, and the features that their shaders need."""
        used = sorted({shader for plan in plans for shader, _, _ in plan["dispatches"]})
        text = "".join(self.shaders[number]["source"] for number in used)
        features = [name for name, directive in FEATURES.items() if directive in text]
        extensions = [INTEGER_DOT] if "dot4I8Packed" in text or "dot4U8Packed" in text else []
        row = {"features": features, "wgsl": extensions, "subgroup": subgroup, "plans": plans}
        self.variants.append(row)


FEATURES = {"subgroups": ENABLE_SUBGROUPS, "shader-f16": "enable f16;"}  # the shader directive of each feature


def _device(subgroup: int) -> tuple[Capabilities, Tuning]:
    """A browser's device with subgroups of at least this many lanes, and its tuning; 0 means without subgroups.

    WGSL allows subgroup sums and barriers only in uniform control flow. The tuning disables the kernels that violate
    this: those for integers, attention in which lanes share keys, and ranking of experts and sampling by subgroups. It
    also disables merged products, because they write to overlapping bindings.
    """
    if not subgroup:
        return DEFAULT, default_tuning(DEFAULT)
    can = replace(DEFAULT, subgroup=True, subgroup_width=subgroup, f16=True, integer_dot=False)
    return can, default_tuning(can).changed(**CONFORMING)


def record(file: GGUFFile, model: Model, context: int | None = None, suppressed: Sequence[int] = ()) -> Recorded:
    """Records all plans of one sequence; tokens in `suppressed` are never sampled."""
    device = HostDevice(DEFAULT)
    config = CacheConfig.of(model, slots=1, context=context)
    places: list[Place] = []
    weights = place_weights(
        device, parameters_of(file, model), lambda nbytes, _: device.buffer(nbytes, "weights"), places
    )
    write_weights(device, file, places)
    recorded, recording = Recorded(device, config), _Memory(device, model, config, suppressed)
    scratch, numbers = Scratch(device), _Numbers(recorded)
    for subgroup in SUBGROUPS:  # the portable variant first: it needs the most memory, which the others share
        device.capabilities, tuning = _device(subgroup)
        plans = []
        for rows in (DECODE, *PREFILL):
            recorder = recording.recorder(weights, rows, scratch, tuning)
            logits = model.forward(recorder, recorder.input("ids", np.uint32, (rows,)))
            outputs = {"chosen": recorder.sample(logits, how="any"), "logits": logits}
            dispatches = recorder.dispatches(outputs.values())
            step = place_step(device, weights, scratch, recorder.graph, dispatches, outputs, each=["chosen"])
            plans.append(numbers.plan(rows, step, recorder))
        recorded.add_variant(subgroup, plans)
    recorded.variants.reverse()  # now the best variant comes first
    recording.describe(recorded, numbers)
    return recorded


class _Memory:
    """The memory of one sequence that outlives a step: states, keys and values, and sampler state."""

    def __init__(self, device: HostDevice, model: Model, config: CacheConfig, suppressed: Sequence[int]) -> None:
        self._device, self._model, self._config = device, model, config
        self._states = {state.name: self._slice(STATES * 4 * math.prod(state.shape), "state") for state in model.states}
        # All layers keep all positions, even those with a window, so that one page table serves all.
        self._caches = {
            cache.name: tuple(
                self._slice(max(1, config.max_pages) * config.page_bytes(cache), f"{what} of {cache.name}")
                for what in cache.stored
            )
            for cache in model.caches
        }
        largest = max((one.nbytes for pair in self._caches.values() for one in pair), default=0)
        if largest > device.capabilities.max_binding:
            raise UnsupportedModel(
                f"the keys of one layer take {largest:,} bytes, but a browser binds "
                f"{device.capabilities.max_binding:,} at most; export with a smaller --context"
            )
        self._sampler = GpuSamplerState(device, 1, model.vocabulary)
        self._biased = bool(suppressed)
        if suppressed:
            self._sampler.bias(0, dict.fromkeys(suppressed, -math.inf))

    def _slice(self, nbytes: int, purpose: str) -> Slice:
        return Slice(self._device.buffer(nbytes, purpose), 0, nbytes)

    def recorder(self, weights: Any, rows: int, scratch: Scratch, tuning: Tuning) -> Recorder:
        """A recorder of steps of one sequence."""
        pages = Caches(self._caches, self._config.kind, self._config.max_pages, self._config.context)
        return Recorder(
            self._device, weights, rows, scratch, tuning, self._states, max_segments=1, max_outputs=1,
            caches=pages, single=rows == DECODE, sampler_state=self._sampler,
        )  # fmt: skip

    def describe(self, recorded: Recorded, numbers: "_Numbers") -> None:
        """Adds the places of these buffers to the manifest."""
        for state in self._model.states:
            place = self._states[state.name]
            row = {"name": state.name, "buffer": numbers.buffer(place.buffer), "shape": list(state.shape)}
            recorded.states.append(row)
        for cache in self._model.caches:
            width = self._config.format_of(cache)
            for name, place in zip(names(cache), self._caches[cache.name], strict=True):
                row = {
                    "name": name,
                    "buffer": numbers.buffer(place.buffer),
                    "type": np.dtype(width.dtype).name,
                    "shape": [cache.heads, width.width(cache.size)],
                    "window": cache.window,
                }
                recorded.caches.append(row)
        sampled, counts = self._sampler.sampled, self._sampler.counts
        recorded.sampler = {
            "sampled": numbers.buffer(sampled.buffer),
            "counts": numbers.buffer(counts.buffer),
            "biased": self._biased,
        }


class _Numbers:
    """Numbers shaders and buffers as they occur, and writes plans with these numbers."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._shaders: dict[str, int] = {}
        self._buffers: dict[Buffer, int] = {}

    def buffer(self, buffer: Buffer) -> int:
        """The number of a buffer."""
        if buffer not in self._buffers:
            self._buffers.update({one: number for number, one in enumerate(self._recorded.buffers)})
        return self._buffers[buffer]

    def _shader(self, pipeline: Any) -> int:
        source = COMMENT.sub("", pipeline.handle)
        if USES_SUBGROUPS.search(source):
            source = ENABLE_SUBGROUPS + source
        if source not in self._shaders:
            self._shaders[source] = len(self._shaders)
            bindings = [[number, one.access] for number, one in pipeline.bindings.items()]
            self._recorded.shaders.append({"name": pipeline.name, "source": source, "bindings": bindings})
        return self._shaders[source]

    def plan(self, rows: int, step: PlacedStep, recorder: Recorder) -> dict[str, Any]:
        """A plan as data."""
        inputs = {
            name: {
                "offset": step.step.slice(name).offset,
                "shape": list(value.shape),
                "type": np.dtype(value.dtype).name,
            }
            for name, value in recorder.graph.inputs.items()
        }
        dispatches = [
            [
                self._shader(one.pipeline),
                list(one.grid),
                [[n, self.buffer(s.buffer), s.offset, s.nbytes] for n, s in sorted(one.bound.items())],
            ]
            for one in step.dispatches
        ]
        return {
            "rows": rows,
            "step": {"buffer": self.buffer(step.step.buffer), "bytes": step.step.buffer.nbytes, "inputs": inputs},
            "outputs": self._outputs(step.outputs),
            "dispatches": dispatches,
        }

    def _outputs(self, outputs: Mapping[str, Output]) -> dict[str, Any]:
        return {
            name: {"buffer": self.buffer(one.place.buffer), "offset": one.place.offset, "row": one.row_bytes}
            for name, one in outputs.items()
        }
