"""Computes whether a model fits in memory, and with which context, before anything is allocated."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from ..errors import OutOfMemory
from ..gguf.file import GGUFFile
from ..gpu.device import Buffer, Device
from ..gpu.loader import ROW_TABLE, Parameter, device_bytes, host_bytes, place_weights
from ..gpu.memory import device_available, host_available
from ..gpu.plan import Slice, StepBuffer
from ..gpu.weight_slots import slot_sizes
from ..gpu.weights import Weights
from ..kernels.defaults import default_tuning
from ..kernels.tuned import Tuned
from ..models.experts import most_used
from ..models.heads import Predicting
from ..models.registry import Contents, Model
from ..ops.adapted import AdaptedOps, LowRank
from ..ops.memory import MAX_SEGMENTS, Caches, Scratch
from ..ops.parts import Part
from ..ops.sampler_state import GpuSamplerState
from ..ops.vocabulary import PAGE
from .adapters import NO_ADAPTERS, Adapters, Array, place_factors
from .bus import main_memory_rate
from .cache.config import DEFAULT_CHUNK, DEFAULT_CONTEXT, CacheConfig, CacheOptions, within_bindings
from .cache.kv import whole
from .offload import ON_GPU, Offload
from .parameters import parameters_of
from .placement import Placement, place, place_as_asked
from .speculation.draft_model import draft_options

# The default context may use this share of free memory; the rest is for scratch and other programs. UNKNOWN limits the
# caches if a device does not report its free memory.
SHARE, UNKNOWN = 0.75, 1 << 30
LONG_CHUNK, AMPLE = 1024, 16 << 30  # on matrix units: rows of a step, if this many bytes are free
SCRATCH_SHARE = 0.25  # upper bound of scratch, as a share of memory
STEP = 1024  # the default context is a multiple of this, or the training length


@dataclass(frozen=True)
class Fit:
    """The bytes that a model needs, by purpose, and the available bytes."""

    context: int | None  # context for which the state is computed; None has no limit
    weights: int
    state: int
    scratch: int  # intermediates, and the sampler state of each sequence
    available: int | None  # None if the device does not report it
    adapters: int = 0  # factors of LoRA adapters
    draft: int = 0  # all that a draft model needs
    projector: int = 0  # weights, keys and values of the tower that the first image loads
    host: int = 0  # weights in main memory, which the GPU reads there
    host_available: int | None = None  # main memory available for these
    host_layers: int = 0  # layers in main memory
    expert_layers: int = 0  # layers whose experts are in main memory
    cache: int = 0  # experts cached on the GPU
    cached_experts: int = 0  # cached experts in each of these layers
    experts: int = 0
    step_bytes: int = 0  # bytes that a step of one token reads from main memory if no expert is cached
    main_memory_rate: float | None = None  # bytes per second that the GPU reads from main memory
    buffer_limit: int | None = None  # None in numpy
    binding_limit: int | None = None

    @property
    def needed(self) -> int:
        """Total bytes needed on the device."""
        return self.weights + self.adapters + self.cache + self.state + self.scratch + self.draft + self.projector

    @property
    def parts(self) -> dict[str, int]:
        """The bytes by purpose; adapters, drafts and projectors only if present."""
        extras = {"adapters": self.adapters, "draft": self.draft, "projector": self.projector}
        always = {"weights": self.weights, "state": self.state, "scratch": self.scratch}
        return always | {name: nbytes for name, nbytes in extras.items() if nbytes}

    @property
    def step_seconds(self) -> float | None:
        """Maximum time that reading main memory adds to a step of one token."""
        return self.step_bytes / self.main_memory_rate if self.main_memory_rate else None

    @property
    def fits(self) -> bool:
        """True if there is enough memory, as far as known."""
        on_gpu = self.available is None or self.needed <= self.available
        return on_gpu and (not self.host or self.host_available is None or self.host <= self.host_available)

    def check(self) -> None:
        """Raises with the numbers if the model does not fit."""
        if not self.fits and self.host:
            raise OutOfMemory(
                f"the model needs {self.needed:,} bytes on the GPU, where {_free(self.available)} are free, and "
                f"{self.host:,} in main memory, where {_free(self.host_available)} are; use a smaller model or "
                "quantisation"
            )
        if not self.fits:
            parts = ", ".join(f"{name} {nbytes:,}" for name, nbytes in self.parts.items())
            raise OutOfMemory(
                f"the model needs {self.needed:,} bytes ({parts}) but {self.available:,} are free; use a smaller "
                "model or quantisation"
            )


@dataclass(frozen=True)
class Companions:
    """Adapters, a draft model and a projector that share a device with a model."""

    adapters: Adapters = NO_ADAPTERS
    draft: tuple[GGUFFile, Model] | None = None  # drafts for the model
    projector: int = 0  # bytes that its tower takes

    def drafting(self, device: Device | None, target: CacheConfig) -> int:
        """Memory needs of the draft model for this target."""
        if self.draft is None:
            return 0
        file, model = self.draft
        return fit(device, file, model, chunk_size=target.chunk_size, **draft_options(model, target)).needed


NO_COMPANIONS = Companions()


def fit(
    device: Device | None,
    file: GGUFFile,
    model: Model,
    companions: Companions = NO_COMPANIONS,
    *,
    chunk_size: int = DEFAULT_CHUNK,
    offload: Offload = ON_GPU,
    **options: Unpack[CacheOptions],
) -> Fit:
    """Adds up what a runner would allocate: weights, states, KV cache, and the scratch of its largest plan.

    Without a device, computes the needs of numpy.
    """
    config = CacheConfig.of(model, chunk_size=chunk_size, **options)
    factors, values = companions.adapters.factors(model)
    extra, draft = factor_bytes(device, values), companions.drafting(device, config)
    if device is None:
        context = config.context if model.caches else None
        state = config.total(model.caches, model.states) + sum(slot_rows_bytes(model, config).values())
        found = Fit(context, host_weights_bytes(model), state, 0, host_available(), extra, draft)
        return replace(found, projector=companions.projector)
    config = within_bindings(device, model, config)
    placement = placement_of(device, file, model, config, chunk_size, offload, extra + draft + companions.projector)
    scratch = _scratch(device, placement.parameters, model, config, chunk_size, factors, values)
    scratch += sum(slot_sizes(device, placement.parameters))
    found = resident(device, placement, model, config, offload, scratch)
    return replace(found, adapters=extra, draft=draft, projector=companions.projector)


def factor_bytes(device: Device | None, values: Mapping[str, Array]) -> int:
    """Size of adapter factors on a device, or in numpy."""
    if device is None:
        return sum(array.nbytes for array in values.values())
    sizes: list[int] = []

    def counted(nbytes: int) -> Buffer:
        sizes.append(nbytes)
        return planned(nbytes, "weights")

    place_factors(device, Weights(device), values, counted)
    return sum(sizes)


def placement_of(
    device: Device,
    file: GGUFFile,
    model: Model,
    config: CacheConfig,
    chunk_size: int,
    offload: Offload,
    reserved: int = 0,
) -> Placement:
    """Places each parameter: on the GPU as long as there is room, the rest in main memory.

    `reserved` bytes on the GPU stay free for other uses.
    """
    parameters = parameters_of(file, model)
    used = most_used(file, file.str("general.architecture"))
    # With unified memory, moving weights gains nothing.
    available = _available(device, offload) if offload.gpu_memory is not None or _is_discrete(device) else None
    available = None if available is None else max(0, available - reserved)
    state = config.total(model.caches, model.states)
    if available is None or (
        not offload.chosen and device_bytes(device, parameters) + state <= (1 - SCRATCH_SHARE) * available
    ):
        return place(device, parameters, offload, used, None)
    scratch = _scratch(device, parameters, model, config, chunk_size)
    scratch += GpuSamplerState.nbytes(config.slots, model.vocabulary)
    return place(device, parameters, offload, used, available - state - scratch)


def fit_part(device: Device | None, file: GGUFFile, part: Part, config: CacheConfig) -> Fit:
    """Like `fit`, for a part of a model, with the cache configuration of the whole model."""
    if device is None:
        state = config.total(part.caches, part.states)
        return Fit(config.context if part.caches else None, host_weights_bytes(part), state, 0, host_available())
    within_bindings(device, part, config, whole=False)
    parameters = parameters_of(file, part)
    scratch = _scratch(device, parameters, part, config, config.chunk_size)
    return resident(device, Placement(parameters), part, config, ON_GPU, scratch)


def with_context(
    device: Device | None,
    file: GGUFFile,
    model: Model,
    offload: Offload = ON_GPU,
    companions: Companions = NO_COMPANIONS,
    **options: Unpack[CacheOptions],
) -> CacheOptions:
    """The options with a context, and a pool of tokens that holds one sequence of that length."""
    return completed(model, options, lambda: _pages(device, file, model, offload, companions, **options))


def completed(model: Model, options: CacheOptions, pages: Callable[[], int]) -> CacheOptions:
    """The options with a context and a pool of tokens. By default: the training length, or as many as `pages` hold.

    It is at least DEFAULT_CONTEXT or the training length; if that does not fit, loading fails with a message. None for
    models without a KV cache, which have no limit.
    """
    found: CacheOptions = {**options}
    if not found.get("context"):
        trained, tokens = model.context or 0, options.get("tokens")
        least = min(trained, DEFAULT_CONTEXT if tokens is None else tokens)
        by_memory = model.caches and tokens is None
        found["context"] = max(least, _context_of(trained, pages())) if by_memory else least if model.caches else None
    found["tokens"] = found.get("tokens") or found["context"]
    return found


def default_chunk(device: Device, tuned: Tuned | None) -> int:
    """The default rows of a step: what `tune` found, or more on matrix units if there is memory for them.

    On an H200, steps of 1,024 rows in place of 512 read prompts of Llama 8B 6% faster, and of RWKV-7 2.9B 9%.
    """
    if tuned is not None and tuned.chunk_size:
        return tuned.chunk_size
    free = device_available(device)
    ample = free is not None and free >= AMPLE
    return LONG_CHUNK if device.capabilities.fragment and ample else DEFAULT_CHUNK


def _pages(
    device: Device | None,
    file: GGUFFile,
    model: Model,
    offload: Offload,
    companions: Companions,
    **options: Unpack[CacheOptions],
) -> int:
    """The pages of the KV cache that there is memory for."""
    trained = model.context or 0
    options["context"] = min(trained, DEFAULT_CONTEXT)
    config = CacheConfig.of(model, **options)
    # Layers with a window take the same memory for any context.
    options["context"] = trained
    longest = CacheConfig.of(model, **options)
    page_bytes, _ = longest.each(model.caches, model.states)
    windows = [cache for cache in model.caches if longest.windows([cache])]
    if not page_bytes:
        return -(-trained // PAGE)
    if device is None:
        available, weights = host_available(), host_weights_bytes(model)
    else:
        available = _available(device, offload)
        weights = device_bytes(device, place_as_asked(parameters_of(file, model), offload))
    states = config.total([], model.states) + longest.total(windows)
    weights += factor_bytes(device, companions.adapters.factors(model)[1]) + companions.projector
    if companions.draft is not None:
        draft_file, draft = companions.draft
        draft_config = CacheConfig.of(draft, **draft_options(draft, longest))
        weights += weights_bytes(device, draft_file, draft) + draft_config.total([], draft.states)
        page_bytes += draft_config.slots * draft_config.each(draft.caches, draft.states)[0]
    pages = (UNKNOWN if available is None else int(SHARE * available) - weights - states) // page_bytes
    if device is not None:
        limit = min(device.capabilities.max_binding, device.capabilities.max_buffer)
        pages = min(pages, *(limit // config.page_bytes(cache) for cache in model.caches if cache not in windows))
    return pages


def _context_of(trained: int, pages: int) -> int:
    """The context that `pages` pages hold: the training length, or a round number of tokens."""
    return trained if pages * PAGE >= trained else pages * PAGE // STEP * STEP


def weights_bytes(device: Device | None, file: GGUFFile, model: Model) -> int:
    """Size of all weights on a device, or in numpy."""
    return host_weights_bytes(model) if device is None else device_bytes(device, parameters_of(file, model))


def host_weights_bytes(model: Contents) -> int:
    """Size of the weights in numpy, which computes in float32. Rows of a table are read from the file."""
    return sum(4 * math.prod(weight.shape) for weight in model.weights if weight.name != ROW_TABLE)


def resident(
    device: Device, placement: Placement, model: Contents, config: CacheConfig, offload: Offload, scratch: int = 0
) -> Fit:
    """Memory allocated while a model is loaded, plus the scratch of a plan."""
    can, main = device.capabilities, host_available()
    on_gpu = Fit(
        context=config.context if model.caches else None,
        weights=device_bytes(device, placement.parameters),
        state=config.total(model.caches, model.states) + sum(slot_rows_bytes(model, config).values()),
        scratch=scratch + GpuSamplerState.nbytes(config.slots, model.vocabulary),
        available=_available(device, offload),
        host=host_bytes(device, placement.parameters),
        host_layers=placement.host_layers,
        expert_layers=placement.expert_layers,
        cache=placement.cache_bytes,
        cached_experts=placement.slots,
        experts=placement.experts,
        step_bytes=placement.step_bytes,
        buffer_limit=can.max_buffer,
        binding_limit=can.max_binding,
    )
    if not on_gpu.host:
        return on_gpu
    left = main if main is None or _is_discrete(device) else max(0, main - on_gpu.needed)
    return replace(on_gpu, host_available=left, main_memory_rate=main_memory_rate(device))


def _scratch(
    device: Device,
    parameters: Sequence[Parameter],
    model: Model | Part,
    config: CacheConfig,
    chunk_size: int,
    factors: Mapping[str, LowRank] | None = None,
    values: Mapping[str, Array] | None = None,
) -> int:
    """Size of the intermediates of the largest plan, recorded with buffers that are not allocated."""
    weights = place_weights(device, parameters, lambda nbytes, _: planned(nbytes, "weights"))
    place_factors(device, weights, values or {}, lambda nbytes: planned(nbytes, "weights"))
    states = {}
    for state in model.states:
        nbytes = config.state_bytes(state)
        states[state.name] = Slice(planned(nbytes, "state"), 0, nbytes)
    for name, nbytes in slot_rows_bytes(model, config).items():
        states[name] = Slice(planned(nbytes, "state"), 0, nbytes)
    caches = {}
    for cache in model.caches:
        caches[cache.name] = tuple(whole(planned(config.nbytes(cache), "kv")) for _ in cache.stored)
    from ..ops.recorder import Recorder  # imports all passes, which a model in numpy does not need

    recorder = Recorder(
        device, weights, chunk_size, Scratch(device), default_tuning(device.capabilities), states,
        max_segments=min(chunk_size, config.slots, MAX_SEGMENTS),
        max_outputs=min(chunk_size, config.slots * (1 + config.drafts)),
        caches=Caches(caches, config.kind, config.max_pages, config.context, config.windows(model.caches)),
        single=chunk_size == 1,
        sampler_state=GpuSamplerState(device, config.slots, model.vocabulary, planned),
    )  # fmt: skip
    ids = recorder.input("ids", np.uint32, (chunk_size,))
    if isinstance(model, Part):
        arrived = {one.name: recorder.input(one.name, one.dtype, (chunk_size, *one.shape)) for one in model.arrives}
        logits, leaving = model.run(recorder, "forward", ids, arrived)
        if not model.last:
            return recorder.scratch_bytes(list(leaving.values()))
    elif factors:
        rank = next(iter(factors.values())).b.shape[-1]
        scales = recorder.input("adapters", np.float32, (chunk_size, rank))
        logits = model.forward(AdaptedOps(recorder, factors, scales), ids)
    else:
        logits = model.forward(recorder, ids)
    return recorder.scratch_bytes([logits, recorder.sample(logits)]) + 2 * StepBuffer.HEADER


def slot_rows_bytes(model: Contents, config: CacheConfig) -> dict[str, int]:
    """Bytes of the rows that the head of a model reads, by name."""
    rows = [model.head.rows] if isinstance(model, Predicting) and model.head.rows else []
    return {one.name: 4 * config.slots * math.prod(one.shape) for one in rows}


def _is_discrete(device: Device) -> bool:
    return bool(device.adapter.kind == "DiscreteGPU")


def _available(device: Device, offload: Offload) -> int | None:
    """Bytes that the model may take on the GPU; None if unknown."""
    free = device_available(device)
    if offload.gpu_memory is None or free is None:
        return free if offload.gpu_memory is None else offload.gpu_memory
    return min(free, offload.gpu_memory)


def _free(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else f"{nbytes:,}"


def planned(nbytes: int, purpose: str) -> Buffer:
    """A placeholder for a buffer that is not allocated."""
    return Buffer(None, nbytes, purpose, Counter())
