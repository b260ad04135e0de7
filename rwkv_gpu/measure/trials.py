"""A trial: some ops run on a device in one variant, compared with numpy, and timed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RwkvGpuError
from ..gguf.formats import Format
from ..gguf.planes import dequantise_rows
from ..gpu.device import Device
from ..gpu.expert_cache import expert_caches
from ..gpu.loader import Parameter
from ..gpu.plan import Plan, Slice
from ..gpu.profile import time_replay
from ..gpu.weight_slots import assign_slots
from ..gpu.weights import FORMAT_OF, upload_together
from ..kernels.tuning import Tuning
from ..ops.batch import Batch
from ..ops.kv_format import KVType
from ..ops.memory import Caches, Scratch
from ..ops.recorder import Recorder
from ..ops.reference import Reference
from ..ops.sampler_state import GpuSamplerState, HostSamplerState
from ..ops.sampling import Drawing, draw_words
from ..ops.vocabulary import Weight

Array = npt.NDArray[Any]
Compute = Callable[..., Any]  # (ops, weights, **inputs) -> a tensor
POISON = 0xFFFFFFFF  # NaN as a float, and out of range as an index, so that missing writes show
REPLAYS = 3
LARGEST, LEAST = 2.0, 0.02  # magnitudes of a block's weights, similar to a model's


@dataclass(frozen=True)
class Stored:
    """A weight as stored in a file."""

    format: Format
    raw: npt.NDArray[np.uint8]  # [rows, bytes of a row]
    shape: tuple[int, ...]

    @classmethod
    def random(cls, fmt: Format, *shape: int, seed: int = 0) -> "Stored":
        """Returns random blocks of a format, with scales that give weights of usual size."""
        blocks = _blocks(fmt)
        chosen = np.random.default_rng(seed).integers(0, len(blocks), math.prod(shape) // fmt.block)
        return cls(fmt, blocks[chosen].reshape(math.prod(shape[:-1]), -1), shape)

    @classmethod
    def of(cls, array: Array) -> "Stored":
        """Stores floats unchanged."""
        rows = np.ascontiguousarray(array).reshape(-1, array.shape[-1])
        return cls(FORMAT_OF[array.dtype], rows.view(np.uint8), array.shape)

    @cached_property
    def values(self) -> Array:
        """The dequantised values."""
        return dequantise_rows(self.format, self.raw).reshape(self.shape)


@cache
def _blocks(fmt: Format) -> npt.NDArray[np.uint8]:
    """Some realistic blocks."""
    blocks = np.random.default_rng(0).integers(0, 256, (20000, fmt.nbytes), np.uint8)
    with np.errstate(all="ignore"):
        largest = np.abs(dequantise_rows(fmt, blocks)).max(axis=1)
    fine: npt.NDArray[np.uint8] = blocks[(largest > LEAST) & (largest < LARGEST)]
    return fine


@dataclass(frozen=True)
class Past:
    """Data of sequences from before the step: states, pages of keys and values, or earlier tokens."""

    batch: Batch
    states: Mapping[str, Array] = field(default_factory=dict)
    caches: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)
    kind: KVType = "f32"  # format of the caches


@dataclass(frozen=True)
class Draws:
    """Sampling parameters of rows."""

    rows: Array  # DRAW [R]
    earlier: Sequence[int]  # earlier tokens of the sequence in every slot
    vocabulary: int
    masks: npt.NDArray[np.uint32] | None = None
    biases: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """Ops on given inputs, the kernel variant to compute them, and the tolerance."""

    op: str
    what: str
    variant: str
    tuning: Tuning
    compute: Compute
    inputs: Mapping[str, Array]
    weights: Mapping[str, Stored] = field(default_factory=dict)
    allowed: float = 1e-4  # relative to the largest number
    past: Past | None = None
    draws: Draws | None = None
    columns: tuple[int, ...] | None = None  # columns of the result that are compared
    main_memory: bool = False  # whether weights are in main memory, if the device can read it
    slots: int = 0  # slots of an expert cache


@dataclass(frozen=True)
class Outcome:
    """The result of a trial. `error` is relative to the largest number; infinite if a number is missing."""

    op: str
    what: str
    variant: str
    error: float
    allowed: float
    seconds: float
    refusal: str = ""  # error message, if the device would not compile or run it

    def __str__(self) -> str:
        name = ", ".join(part for part in (self.op, self.what, self.variant) if part)
        return f"{name}: {self.refusal or f'off by {self.error:.1e}, {self.allowed:.0e} allowed'}"

    @property
    def right(self) -> bool:
        """True if the device's result agrees with numpy's."""
        return not self.refusal and self.error <= self.allowed


def run(device: Device, trial: Trial) -> Outcome:
    """Runs a trial on a device."""
    try:
        plan, sampler_state = _recorded(device, trial)
        given = _given(trial)
        plan.run(*given)
        found = _read(plan, given[0])
        seconds = min(time_replay(plan, *given) for _ in range(REPLAYS))
    except RwkvGpuError as error:
        reason = " ".join(str(error).split())
        return Outcome(trial.op, trial.what, trial.variant, math.inf, trial.allowed, 0.0, reason)
    del sampler_state
    wanted = expected(trial)
    if trial.columns is not None:
        found, wanted = found[:, trial.columns], wanted[:, trial.columns]
    return Outcome(trial.op, trial.what, trial.variant, difference(found, wanted), trial.allowed, seconds)


def answer(device: Device, trial: Trial) -> Array:
    """Runs a trial on the device; returns the result."""
    plan, _sampler_state = _recorded(device, trial)
    given = _given(trial)
    plan.run(*given)
    return _read(plan, given[0])


def expected(trial: Trial) -> Array:
    """Runs a trial in numpy; returns the result."""
    past, draws = trial.past, trial.draws
    drawing = None
    if draws is not None:
        host = HostSamplerState(len(draws.rows), draws.vocabulary)
        _remember(host, draws)
        drawing = Drawing(host, draws.rows, draws.masks)
    reference = Reference(
        {name: stored.values for name, stored in trial.weights.items()},
        {name: array.copy() for name, array in past.states.items()} if past else {},
        past.batch if past else None,
        {name: tuple(array.copy() for array in stored) for name, stored in past.caches.items()} if past else {},
        drawing,
    )
    y: Array = trial.compute(reference, _named(trial), **trial.inputs)
    return y


def difference(found: Array, wanted: Array) -> float:
    """Distance of two results relative to the largest number; for integers, 0 or infinite."""
    if wanted.dtype.kind != "f":
        return 0.0 if np.array_equal(found, wanted) else math.inf
    if not np.isfinite(found).all():
        return math.inf
    return float(np.abs(found - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))


def _recorded(device: Device, trial: Trial) -> tuple[Plan, GpuSamplerState | None]:
    host = trial.main_memory and device.capabilities.main_memory
    weights = upload_together(device, {name: (w.format, w.raw, w.shape) for name, w in trial.weights.items()}, host)
    past, scratch = trial.past, Scratch(device)
    rows = len(next(iter(trial.inputs.values())))
    more: dict[str, Any] = {}
    if past is not None:
        more = {"max_segments": len(past.batch.segments), "single": past.batch.single}
        more["states"] = {name: _whole(device, array) for name, array in past.states.items()}
        more["state_type"] = "f16" if any(array.dtype == np.float16 for array in past.states.values()) else "f32"
        pages = {name: tuple(_whole(device, array) for array in stored) for name, stored in past.caches.items()}
        if pages:
            more["caches"] = Caches(pages, past.kind, max(len(s.pages) for s in past.batch.segments))
    if trial.main_memory:
        parameters = [Parameter(name, w.shape, (), w.format, host=True) for name, w in trial.weights.items()]
        more["slots"] = assign_slots(device, weights, parameters)
        weights = weights.through(
            expert_caches(device, weights, [p for p in parameters if p.is_experts and trial.slots], trial.slots)
        )
    sampler_state = None
    if trial.draws is not None:
        sampler_state = more["sampler_state"] = GpuSamplerState(device, len(trial.draws.rows), trial.draws.vocabulary)
        _remember(sampler_state, trial.draws)
        more["max_outputs"] = rows
    recorder = Recorder(device, weights, rows, scratch, trial.tuning, **more)
    values = {name: recorder.input(name, array.dtype, array.shape) for name, array in trial.inputs.items()}
    plan = recorder.finish({"y": trial.compute(recorder, _named(trial), **values)})
    for buffer in scratch.buffers:
        device.write(buffer, np.full(buffer.nbytes // 4, POISON, np.uint32))
    return plan, sampler_state


def _read(plan: Plan, rows: int) -> Array:
    """The result of a trial: one row for each row of the step, or for each picked row."""
    return plan.read("y", min(rows, plan.outputs["y"].shape[0]))


def _given(trial: Trial) -> tuple[int, dict[str, Array], int, int]:
    """Rows, inputs, segments and outputs, in the form for a plan."""
    rows = len(next(iter(trial.inputs.values())))
    inputs = dict(trial.inputs)
    if trial.past is not None:
        inputs |= trial.past.batch.arrays()
    if trial.draws is not None:
        inputs["draws"] = draw_words(trial.draws.rows)
        if trial.draws.masks is not None:
            inputs["masks"] = trial.draws.masks
    segments, outputs = (len(trial.past.batch.segments), len(trial.past.batch.outputs)) if trial.past else (0, 0)
    return rows, inputs, segments, rows if trial.draws else outputs


def _remember(sampler_state: "GpuSamplerState | HostSamplerState", draws: Draws) -> None:
    for slot in range(len(draws.rows)):
        sampler_state.remember(slot, draws.earlier, int(draws.rows["window"][slot]), 1.0)
        sampler_state.bias(slot, draws.biases)


def _whole(device: Device, array: Array) -> Slice:
    buffer = device.upload(array, "state")
    return Slice(buffer, 0, buffer.nbytes)


def _named(trial: Trial) -> dict[str, Weight]:
    return {name: Weight(name, stored.shape) for name, stored in trial.weights.items()}
