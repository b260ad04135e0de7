"""Whether a model fits a device, told before anything is allocated."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from ..errors import OutOfMemory
from ..gguf.file import GGUFFile
from ..gpu.defaults import default_tuning
from ..gpu.device import Buffer, Device
from ..gpu.loader import Parameter, device_bytes, place_weights
from ..gpu.memory import device_available
from ..gpu.plan import Slice, StepBuffer
from ..models.registry import Model
from ..ops.recorder import Recorder
from ..ops.recording import MAX_SEGMENTS, Caches, Scratch
from ..ops.sampler_state import GpuSamplerState
from .cache.config import CacheConfig, CacheOptions, check_bindings
from .cache.kv import whole
from .parameters import parameters_of


@dataclass(frozen=True)
class Fit:
    """The bytes that a model will take on a device, by purpose, against what there is."""

    weights: int
    state: int
    scratch: int  # intermediates, and what sampling keeps of each sequence
    available: int | None  # None where the device does not tell
    buffer_limit: int
    binding_limit: int

    @property
    def needed(self) -> int:
        """All of it."""
        return self.weights + self.state + self.scratch

    @property
    def fits(self) -> bool:
        """Whether it will be enough, as far as can be known."""
        return self.available is None or self.needed <= self.available

    def check(self) -> None:
        """Refuses what does not fit, with the numbers."""
        if not self.fits:
            raise OutOfMemory(
                f"the model needs {self.needed:,} bytes (weights {self.weights:,}, state {self.state:,}, "
                f"scratch {self.scratch:,}) but {self.available:,} are free; take a smaller model or quantisation"
            )


def fit(
    device: Device,
    file: GGUFFile,
    model: Model,
    *,
    chunk_size: int = 512,
    **options: Unpack[CacheOptions],
) -> Fit:
    """Adds up what a runner would allocate: weights, states (keys and values too), the scratch of its largest plan."""
    config = CacheConfig.of(model, **options)
    check_bindings(device, model, config)
    parameters = parameters_of(file, model)
    return held(device, parameters, model, config, _scratch(device, parameters, model, config, chunk_size))


def held(device: Device, parameters: Sequence[Parameter], model: Model, config: CacheConfig, scratch: int = 0) -> Fit:
    """What is kept for as long as a model is loaded, and the scratch that a plan was found to take."""
    can = device.capabilities
    return Fit(
        weights=device_bytes(device, parameters),
        state=config.total(model.caches, model.states),
        scratch=scratch + GpuSamplerState.nbytes(config.slots, model.vocabulary),
        available=device_available(device),
        buffer_limit=can.max_buffer,
        binding_limit=can.max_binding,
    )


def _scratch(
    device: Device, parameters: Sequence[Parameter], model: Model, config: CacheConfig, chunk_size: int
) -> int:
    """Records the largest plan over buffers that are only numbers."""
    weights = place_weights(device, parameters, lambda nbytes: planned(nbytes, "weights"))
    states = {}
    for state in model.states:
        nbytes = config.state_bytes(state)
        states[state.name] = Slice(planned(nbytes, "state"), 0, nbytes)
    caches = {}
    for cache in model.caches:
        keys, values = (whole(planned(config.nbytes(cache), "kv")) for _ in range(2))
        caches[cache.name] = keys, values
    recorder = Recorder(
        device, weights, chunk_size, Scratch(device), default_tuning(device.capabilities), states,
        max_segments=min(chunk_size, config.slots, MAX_SEGMENTS), max_outputs=min(chunk_size, config.slots),
        caches=Caches(caches, config.kind, config.max_pages), single=chunk_size == 1,
        sampler_state=GpuSamplerState(device, config.slots, model.vocabulary, planned),
    )  # fmt: skip
    logits = model.forward(recorder, recorder.input("ids", np.uint32, (chunk_size,)))
    return recorder.scratch_bytes([logits, recorder.sample(logits)]) + 2 * StepBuffer.HEADER


def planned(nbytes: int, purpose: str) -> Buffer:
    """A buffer that stands for one that is not allocated."""
    return Buffer(None, nbytes, purpose, Counter())
