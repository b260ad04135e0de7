"""Whether a model fits in memory, and with how long a context, before anything is allocated."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from ..errors import OutOfMemory
from ..gguf.file import GGUFFile
from ..gpu.device import Buffer, Device
from ..gpu.loader import Parameter, device_bytes, place_weights
from ..gpu.memory import device_available, host_available
from ..gpu.plan import Slice, StepBuffer
from ..kernels.defaults import default_tuning
from ..models.registry import Model
from ..ops.memory import MAX_SEGMENTS, Caches, Scratch
from ..ops.sampler_state import GpuSamplerState
from ..ops.vocabulary import PAGE
from .cache.config import DEFAULT_CONTEXT, CacheConfig, CacheOptions, check_bindings
from .cache.kv import whole
from .parameters import parameters_of

# What the default context leaves to scratch and to other programs, and what its caches may take on a device that does
# not say how much memory is free.
SHARE, UNKNOWN = 0.75, 1 << 30
STEP = 1024  # the default context is a multiple of this, where it is not what the model was trained on


@dataclass(frozen=True)
class Fit:
    """The bytes that a model needs, by purpose, and those that are there."""

    context: int | None  # of a sequence, which the state is for; None has no limit
    weights: int
    state: int
    scratch: int  # intermediates, and the sampler's memory of each sequence
    available: int | None  # None where the device does not say
    buffer_limit: int | None = None  # None in numpy
    binding_limit: int | None = None

    @property
    def needed(self) -> int:
        """The sum."""
        return self.weights + self.state + self.scratch

    @property
    def fits(self) -> bool:
        """Whether there is enough, as far as can be known."""
        return self.available is None or self.needed <= self.available

    def check(self) -> None:
        """Refuses what does not fit, with the numbers."""
        if not self.fits:
            raise OutOfMemory(
                f"the model needs {self.needed:,} bytes (weights {self.weights:,}, state {self.state:,}, "
                f"scratch {self.scratch:,}) but {self.available:,} are free; take a smaller model or quantisation"
            )


def fit(
    device: Device | None,
    file: GGUFFile,
    model: Model,
    *,
    chunk_size: int = 512,
    **options: Unpack[CacheOptions],
) -> Fit:
    """Adds up what a runner would allocate: weights, states, the KV cache, the scratch of its largest plan.

    Without a device, those of numpy.
    """
    config = CacheConfig.of(model, chunk_size=chunk_size, **options)
    if device is None:
        context = config.context if model.caches else None
        state = config.total(model.caches, model.states)
        return Fit(context, host_weights_bytes(model), state, 0, host_available())
    check_bindings(device, model, config)
    parameters = parameters_of(file, model)
    return resident(device, parameters, model, config, _scratch(device, parameters, model, config, chunk_size))


def with_context(device: Device | None, file: GGUFFile, model: Model, **options: Unpack[CacheOptions]) -> CacheOptions:
    """The options with a context, and a pool of tokens that holds one sequence of that length."""
    options["context"] = options.get("context") or default_context(device, file, model, **options)
    options["tokens"] = options.get("tokens") or options["context"]
    return options


def default_context(device: Device | None, file: GGUFFile, model: Model, **options: Unpack[CacheOptions]) -> int | None:
    """The context where none is asked for: as many tokens as the model was trained on, or as there is memory for.

    It is at least DEFAULT_CONTEXT, or what the model was trained on; if that does not fit, loading says so. None is
    the context of models without a KV cache, which has no limit.
    """
    if not model.caches:
        return None
    trained, tokens = model.context or 0, options.get("tokens")
    if tokens is not None:
        return min(trained, tokens)
    least = min(trained, DEFAULT_CONTEXT)
    options["context"] = least
    config = CacheConfig.of(model, **options)
    # Layers with a window take the same for any context.
    options["context"] = trained
    longest = CacheConfig.of(model, **options)
    page_bytes, _ = longest.each(model.caches, model.states)
    windows = [cache for cache in model.caches if longest.windows([cache])]
    if not page_bytes:
        return trained
    if device is None:
        available, weights = host_available(), host_weights_bytes(model)
    else:
        available, weights = device_available(device), device_bytes(device, parameters_of(file, model))
    states = config.total([], model.states) + longest.total(windows)
    pages = (UNKNOWN if available is None else int(SHARE * available) - weights - states) // page_bytes
    if device is not None:
        limit = min(device.capabilities.max_binding, device.capabilities.max_buffer)
        pages = min(pages, *(limit // config.page_bytes(cache) for cache in model.caches if cache not in windows))
    return max(least, trained if pages * PAGE >= trained else pages * PAGE // STEP * STEP)


def host_weights_bytes(model: Model) -> int:
    """Bytes of the weights in numpy, which computes in float32."""
    return sum(4 * math.prod(weight.shape) for weight in model.weights)


def resident(
    device: Device, parameters: Sequence[Parameter], model: Model, config: CacheConfig, scratch: int = 0
) -> Fit:
    """What stays allocated while a model is loaded, and the scratch of a plan."""
    can = device.capabilities
    return Fit(
        context=config.context if model.caches else None,
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
    """The intermediates of the largest plan, recorded over buffers that are not allocated."""
    weights = place_weights(device, parameters, lambda nbytes: planned(nbytes, "weights"))
    states = {}
    for state in model.states:
        nbytes = config.state_bytes(state)
        states[state.name] = Slice(planned(nbytes, "state"), 0, nbytes)
    caches = {}
    for cache in model.caches:
        caches[cache.name] = tuple(whole(planned(config.nbytes(cache), "kv")) for _ in cache.stored)
    from ..ops.recorder import Recorder  # with all passes: a model in numpy starts sooner without

    recorder = Recorder(
        device, weights, chunk_size, Scratch(device), default_tuning(device.capabilities), states,
        max_segments=min(chunk_size, config.slots, MAX_SEGMENTS),
        max_outputs=min(chunk_size, config.slots * (1 + config.drafts)),
        caches=Caches(caches, config.kind, config.max_pages, config.context, config.windows(model.caches)),
        single=chunk_size == 1,
        sampler_state=GpuSamplerState(device, config.slots, model.vocabulary, planned),
    )  # fmt: skip
    logits = model.forward(recorder, recorder.input("ids", np.uint32, (chunk_size,)))
    return recorder.scratch_bytes([logits, recorder.sample(logits)]) + 2 * StepBuffer.HEADER


def planned(nbytes: int, purpose: str) -> Buffer:
    """A buffer that stands for one that is not allocated."""
    return Buffer(None, nbytes, purpose, Counter())
