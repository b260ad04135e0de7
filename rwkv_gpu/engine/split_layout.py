"""Assigns the layers of a model to devices: by requested shares, or by memory and speed of each device."""

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

from ..errors import BadInput, NoAdapter, OutOfMemory
from ..gguf.file import GGUFFile
from ..gpu.adapters import PREFERENCE, Choice, find, several
from ..gpu.device import Device
from ..gpu.loader import Progress, device_bytes
from ..gpu.memory import device_available, host_available
from ..kernels.tuning import Tuning
from ..models.registry import Model, reads_prompts_whole, start_of
from ..ops.parts import Part
from ..ops.vocabulary import PAGE
from .adapters import Adapters
from .balance import Load, balanced, filled
from .bus import memory_rate
from .cache.config import DEFAULT_CONTEXT, CacheConfig, CacheOptions
from .fit import NO_COMPANIONS, SHARE, UNKNOWN, Companions, Fit, completed, factor_bytes, fit_part, host_weights_bytes
from .gpu_runner import GpuRunner
from .host_runner import HostRunner
from .offload import ON_GPU, Offload
from .parameters import parameters_of
from .runner import PartRunner, Share
from .split import SplitRunner, parts_of

EMBEDDING = "token_embd.weight"  # a token reads only one of its rows, unless it is the output matrix too
FULL = 0.9  # share of the free memory that an automatic split may use for weights, states and pages
Split = Sequence[float] | None  # shares of the layers by device; None decides by memory and speed


@dataclass(frozen=True)
class OpenDevice:
    """A device for a part: a GPU, or numpy."""

    choice: Choice
    gpu: Device | None

    @property
    def name(self) -> str:
        """Device name for display."""
        return "cpu" if self.choice.adapter is None else self.choice.adapter.name

    @property
    def memory(self) -> str:
        """Identifies the memory it uses; devices without their own share that of the machine."""
        adapter = self.choice.adapter
        return f"GPU {adapter.index}" if adapter is not None and adapter.kind == "DiscreteGPU" else "main memory"

    @property
    def available(self) -> int | None:
        """Free bytes; None if unknown."""
        return host_available() if self.gpu is None else device_available(self.gpu)

    @property
    def rate(self) -> float:
        """Bytes of weights that it reads per second, measured now."""
        return memory_rate(self.gpu)

    def close(self) -> None:
        """Frees all memory of the device."""
        if self.gpu is not None:
            self.gpu.close()

    def weights(self, file: GGUFFile, part: Part) -> int:
        """Size of a part's weights."""
        if self.gpu is None:
            return host_weights_bytes(part)
        return device_bytes(self.gpu, parameters_of(file, part))


def device_names(device: object) -> list[str]:
    """The requested devices: one, or several as a list or separated by commas. A name may contain commas too."""
    each = list(device) if isinstance(device, list | tuple) else [device]
    if not each or any(isinstance(one, bool) or not isinstance(one, str | int) or one == "" for one in each):
        raise BadInput(f"device is {device!r}; it must be auto, cpu, an index or a part of a name, or several of these")
    names = [str(one) for one in each]
    if len(names) > 1 or ("," not in names[0] and names[0].lower() != "all"):
        return names
    parts = [part.strip() for part in names[0].lower().split(",")]
    if not all(parts):
        raise BadInput(f"device is {device!r}; it lists a device without a name")
    listed = all(part.isdecimal() or part in ("all", "cpu") for part in parts)
    return names if not listed and _is_one(names[0]) else several(names[0])


def shares_of(split: object, devices: int) -> Split:
    """The shares of `split`: None or auto, numbers, or numbers separated by commas."""
    if split is None or split == "auto":
        return None
    parts = split.split(",") if isinstance(split, str) else split
    try:
        shares = [float(part) for part in parts]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        shares = []
    if not shares or not all(math.isfinite(share) and share > 0 for share in shares):
        raise BadInput(f"split is {split!r}; it must be auto, or a number above 0 for each device, such as 3,1")
    if len(shares) != devices:
        named = "one device is" if devices == 1 else f"{devices} devices are"
        raise BadInput(f"split has {len(shares)} numbers, but {named} named; give one number for each device")
    return shares


def choices_of(names: Sequence[str]) -> list[Choice]:
    """Finds the devices by name; a hardware GPU can be named once."""
    choices = [find(name) for name in names]
    taken: dict[int, str] = {}
    for name, choice in zip(names, choices, strict=True):
        adapter = choice.adapter
        if adapter is None or adapter.kind not in PREFERENCE:
            continue
        if adapter.index in taken:
            both = f"'{taken[adapter.index]}' and '{name}'" if taken[adapter.index] != name else f"'{name}', twice,"
            raise BadInput(f"device: {both} name the same GPU, {adapter}; name each GPU once")
        taken[adapter.index] = name
    return choices


def first_layers(shares: Sequence[float], layers: int) -> list[int]:
    """Returns the first layer of each part, given their shares of the layers. Each part has at least one layer."""
    if len(shares) > layers:
        raise BadInput(f"the model has {layers} layers, too few for {len(shares)} devices; name fewer devices")
    most = max(shares)  # the sum of the largest floats would overflow
    sums = [*itertools.accumulate(share / most for share in shares)]
    ends = [round(layers * one / sums[-1]) for one in sums]
    starts = [0]
    for number, end in enumerate(ends[:-1], 1):
        starts.append(min(max(end, starts[-1] + 1), layers - (len(shares) - number)))
    return starts


@dataclass(frozen=True)
class PartTuning:
    """How the steps of a part are built on its GPU."""

    tuning: Tuning | None = None  # None uses the device's default
    layers_per_submit: int = 0


@dataclass(frozen=True)
class Layout:
    """The parts of a model, each with an open device and its memory needs."""

    model: Model
    devices: Sequence[OpenDevice]
    parts: Sequence[Part]
    fits: Sequence[Fit]
    options: CacheOptions  # including a context
    adapters: Adapters

    @property
    def needed(self) -> int:
        """Total bytes of all parts."""
        return sum(one.needed for one in self.fits)

    @property
    def fitting(self) -> bool:
        """True if every part has enough memory."""
        return all(one.fits for one in self.fits)

    @property
    def names(self) -> list[str]:
        """The location of each part, one line per part: llvmpipe (layers 0-11)"""
        return [f"{one.name} ({layers_text(part)})" for one, part in zip(self.devices, self.parts, strict=True)]

    def check(self) -> None:
        """Raises with the numbers if a part does not fit."""
        for name, one in zip(self.names, self.fits, strict=True):
            if not one.fits:
                raise OutOfMemory(
                    f"{name} needs {one.needed:,} bytes (weights {one.weights:,}, state {one.state:,}, scratch "
                    f"{one.scratch:,}) but {one.available:,} are free; give it a smaller share of the split, or use a "
                    "smaller context, model or quantisation"
                )

    def runner(
        self, file: GGUFFile, tunings: Sequence[PartTuning | None], chunk_size: int, progress: Progress | None = None
    ) -> SplitRunner:
        """Loads the parts; each part on a GPU has a tuning."""
        self.check()
        done = 0

        def part_progress(part: int, total: int) -> None:
            if progress is not None and done + part < file.nbytes:
                progress(done + part, file.nbytes)
            if part == total:
                count_done(total)

        def count_done(nbytes: int) -> None:
            nonlocal done
            done += nbytes

        def make(one: OpenDevice, tuning: PartTuning | None, share: Share) -> PartRunner:
            if one.gpu is None or tuning is None:
                return HostRunner(
                    file, self.model, share=share, chunk_size=chunk_size, adapters=self.adapters, **self.options
                )
            return GpuRunner(
                one.gpu, file, self.model, share=share, progress=part_progress, chunk_size=chunk_size,
                tuning=tuning.tuning, layers_per_submit=tuning.layers_per_submit, adapters=self.adapters,
                **self.options,
            )  # fmt: skip

        makers = [partial(make, one, tuning) for one, tuning in zip(self.devices, tunings, strict=True)]
        runner = SplitRunner(
            self.model, self.parts, makers, names=self.names, chunk_size=chunk_size, adapters=self.adapters,
            **self.options,
        )  # fmt: skip
        if progress is not None:
            progress(file.nbytes, file.nbytes)
        return runner

    def close(self) -> None:
        """Closes the devices."""
        for one in self.devices:
            one.close()


def layers_text(part: Part) -> str:
    """Describes a part, such as `layers 0-11`."""
    return f"layer {part.layers[0]}" if len(part.layers) == 1 else f"layers {part.layers[0]}-{part.layers[-1]}"


def lay_out(
    file: GGUFFile,
    model: Model,
    choices: Sequence[Choice],
    split: Split,
    open_gpu: Callable[[Any], Device],
    *,
    chunk_size: int = 512,
    companions: Companions = NO_COMPANIONS,
    offload: Offload = ON_GPU,
    **options: Unpack[CacheOptions],
) -> Layout:
    """Opens the devices and assigns layers to them. Loads nothing. A draft model is placed on the last device.

    With given shares, every device gets layers. Otherwise the first devices that the model fits on share it, and the
    others are closed again. A token passes through all parts in sequence, so fewer parts are faster.
    """
    from ..ops.cut import layers_of  # imports all nodes, which a model on one device may not need

    if start_of(model) is not None:
        raise BadInput("an encoder-decoder cannot be split over devices; name one device")
    if reads_prompts_whole(model):
        raise BadInput("a model whose prompts see all of themselves cannot be split over devices; name one device")
    layers = layers_of(model)
    on_gpu = layers if offload.gpu_layers is None or offload.gpu_layers < 0 else offload.gpu_layers
    if offload.cpu_moe or offload.gpu_memory is not None or on_gpu < layers:
        raise BadInput(
            "gpu_layers, cpu_moe and gpu_memory, which keep weights in main memory, work with a single device; name one"
        )
    starts = None if split is None else first_layers(split, layers)
    options["look_ahead"] = min(options.get("look_ahead", 1), 1)
    devices: list[OpenDevice] = []
    with contextlib.ExitStack() as opened:  # closes them if a check fails
        for choice in choices:
            devices.append(OpenDevice(choice, None if choice.adapter is None else open_gpu(choice.adapter)))
            opened.callback(devices[-1].close)
        used = devices
        if starts is None:
            counts = counts_by_device(file, model, devices, layers, chunk_size, options)
            used = [one for one, count in zip(devices, counts, strict=True) if count]
            starts = [0, *itertools.accumulate(count for count in counts if count)][:-1]
        parts = parts_of(model, starts, companions.adapters)
        options = completed(model, options, partial(_pages, file, model, used, parts, options))
        plain = parts_of(model, starts)  # plans that are recorded to measure memory have no adapters
        config = CacheConfig.of(model, chunk_size=chunk_size, **options)
        extras = extras_of(model, used, parts, config, companions)
        fits = fits_of(file, used, plain, config, extras)
        opened.pop_all()
    for one in devices:
        if one not in used:
            one.close()
    return Layout(model, used, parts, fits, options, companions.adapters)


def counts_by_device(
    file: GGUFFile,
    model: Model,
    devices: Sequence[OpenDevice],
    layers: int,
    chunk_size: int,
    options: CacheOptions,
) -> list[int]:
    """Number of layers of each device: as few devices as the model fits on, in balance.

    The time of a part is estimated as the time to read its weights. In balance, prompts pass through all parts at the
    same pace.
    """
    least: CacheOptions = {**options}
    least["context"] = options.get("context") or min(model.context or 0, DEFAULT_CONTEXT) or None
    least["tokens"] = options.get("tokens") or least["context"]
    config = CacheConfig.of(model, chunk_size=chunk_size, **least)
    each = parts_of(model, range(layers))
    sharing = [one.memory for one in devices]
    loads = []
    for one in devices:
        available = one.available
        if available is None:
            raise BadInput(f"{one.name} does not report its free memory; set the shares, such as --split 1,1")
        sizes = [one.weights(file, part) + config.total(part.caches, part.states) for part in each]
        loads.append(Load(FULL * available / sharing.count(one.memory), sizes, [0.0] * layers))
    counts = filled(loads)
    if sum(counts) < layers:
        raise OutOfMemory(
            f"{sum(counts)} of the {layers} layers fit on {' + '.join(one.name for one in devices)}; name more "
            "devices, or use a smaller model, quantisation or context"
        )
    used = [number for number, count in enumerate(counts) if count]
    if len(used) == 1:
        return counts
    rates = {devices[number].name: devices[number].rate for number in used}
    reads = [replace(part, weights=tuple(w for w in part.weights if part.last or w.name != EMBEDDING)) for part in each]
    for number in used:
        one = devices[number]
        seconds = [one.weights(file, part) / rates[one.name] for part in reads]
        loads[number] = replace(loads[number], seconds=seconds)
    found = balanced([loads[number] for number in used])
    assert found is not None, "they fit when each device is filled"
    return [found[used.index(number)] if number in used else 0 for number in range(len(devices))]


def _pages(
    file: GGUFFile, model: Model, devices: Sequence[OpenDevice], parts: Sequence[Part], options: CacheOptions
) -> int:
    """The pages of the KV cache that every device has memory for."""
    trained = model.context or 0
    # The KV cache grows with the context by pages; states, and layers with a window, do not grow.
    longest: CacheOptions = {**options}
    longest["context"] = trained
    config = CacheConfig.of(model, **longest)
    pages = -(-trained // PAGE)
    for memory in {one.memory for one in devices}:
        here = [(one, part) for one, part in zip(devices, parts, strict=True) if one.memory == memory]
        caches = [cache for _, part in here for cache in part.caches]
        plain = [cache for cache in caches if not config.windows([cache])]
        page_bytes = sum(len(cache.stored) * config.page_bytes(cache) for cache in plain)
        fixed = config.total([cache for cache in caches if cache not in plain])
        fixed += sum(config.total([], part.states) + one.weights(file, part) for one, part in here)
        available = here[0][0].available
        room = UNKNOWN if available is None else int(SHARE * available) - fixed
        if page_bytes:
            pages = min(pages, max(0, room) // page_bytes)
        for one, part in here:
            if one.gpu is not None:
                limit = min(one.gpu.capabilities.max_binding, one.gpu.capabilities.max_buffer)
                sizes = [config.page_bytes(cache) for cache in part.caches if cache in plain]
                pages = min([pages, *(limit // size for size in sizes)])
    return pages


def extras_of(
    model: Model, devices: Sequence[OpenDevice], parts: Sequence[Part], config: CacheConfig, companions: Companions
) -> list[dict[str, int]]:
    """Sizes of what each device stores in addition to the model.

    Each device stores the adapter factors of its part; the last one also stores the draft model.
    """
    values = companions.adapters.factors(model)[1]
    extras = []
    for one, part in zip(devices, parts, strict=True):
        own = {name: array for name, array in values.items() if name in part.used}
        extras.append({"adapters": factor_bytes(one.gpu, own)})
    extras[-1]["draft"] = companions.drafting(devices[-1].gpu, config)
    return extras


def fits_of(
    file: GGUFFile,
    devices: Sequence[OpenDevice],
    parts: Sequence[Part],
    config: CacheConfig,
    extras: Sequence[Mapping[str, int]],
) -> list[Fit]:
    """Memory needs of each part including extras, and the free memory of its device after the parts before it."""
    left = {one.memory: one.available for one in devices}
    fits = []
    for one, part, extra in zip(devices, parts, extras, strict=True):
        available = left[one.memory]
        fits.append(replace(fit_part(one.gpu, file, part, config), available=available, **extra))
        left[one.memory] = None if available is None else max(0, available - fits[-1].needed)
    return fits


def _is_one(name: str) -> bool:
    """True if a name with commas is the name of one device."""
    try:
        find(name)
    except NoAdapter:
        return False
    return True
