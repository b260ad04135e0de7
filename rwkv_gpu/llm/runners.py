"""Loads a model onto one device: one factory for numpy and one for a GPU. `split_loading` handles several devices."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.adapters import NO_ADAPTERS, Adapters
from ..engine.cache.config import DEFAULT_CHUNK, CacheOptions
from ..engine.fit import Companions, default_chunk, with_context
from ..engine.gpu_runner import GpuRunner
from ..engine.host_runner import HostRunner, rows_on_host
from ..engine.runner import Runner
from ..engine.speculation.speculator import Speculator
from ..gguf.file import GGUFFile
from ..gpu.adapters import Adapter, Choice
from ..gpu.device import Device
from ..gpu.loader import Progress
from ..gpu.matrix_units import refuse_cpu
from ..models.registry import Model
from .drafts import NO_DRAFTS, Drafts
from .load_options import DeviceOptions

if TYPE_CHECKING:
    from ..vision.media_projector import MediaProjector


@dataclass(frozen=True)
class Opened:
    """An open model file, with everything that shares the devices of the model."""

    file: GGUFFile
    model: Model
    adapters: Adapters = NO_ADAPTERS
    drafts: Drafts = NO_DRAFTS
    has_initial_state: bool = False
    projector: "MediaProjector | None" = None

    def min_rows(self, slots: int) -> int:
        """The smallest chunk size with which an image fits into a step of `slots` sequences; 0 without images."""
        return 0 if self.projector is None else self.projector.min_rows + slots

    def companions(self, device: Device | None) -> Companions:
        """Adapters, draft model and projector that share a device with the model."""
        projector = 0 if self.projector is None else self.projector.tower_bytes(device)
        return Companions(self.adapters, self.drafts.model, projector)


@dataclass(frozen=True)
class Loaded:
    """A model loaded onto its devices."""

    runner: Runner
    device: str  # device name for display
    gpus: Sequence[Device | None]  # by part of the model; None is numpy

    def speculator(self, drafts: Drafts) -> Speculator | None:
        """The speculator for the model, on its last device. Closes the model if that fails."""
        try:
            return drafts.speculator(self.runner, self.gpus[-1])
        except BaseException:
            self.runner.close()
            raise


@contextlib.contextmanager
def opened_early(devices: DeviceOptions, choices: Sequence[Choice]) -> Iterator[Callable[[Adapter], Device]]:
    """Opens the only device on a thread, while the caller reads the file. Returns a function that waits for it.

    An error of the caller closes the device. Several devices are opened when they are needed.
    """
    if len(choices) > 1 or choices[0].adapter is None:
        yield devices.open
        return
    with ThreadPoolExecutor(1, "rwkv-gpu-open-device") as thread:
        opening = thread.submit(devices.open, choices[0].adapter)
        try:
            yield lambda _: opening.result()
        except BaseException:
            if opening.exception() is None:
                opening.result().close()
            raise


def load_on_host(
    opened: Opened, devices: DeviceOptions, chunk: int | None, cache: CacheOptions, progress: Progress | None
) -> Loaded:
    """Loads the model into numpy."""
    refuse_cpu(devices.matrix_units)
    file, model = opened.file, opened.model
    cache = with_context(None, file, model, companions=opened.companions(None), **cache)
    slots = cache.get("slots", 1)
    rows = max(opened.min_rows(slots), rows_on_host(model, chunk or DEFAULT_CHUNK, slots))
    runner = HostRunner(file, model, chunk_size=rows, adapters=opened.adapters, **cache)
    if progress is not None:
        progress(file.nbytes, file.nbytes)
    return Loaded(runner, "cpu", [None])


def load_on_gpu(
    opened: Opened,
    adapter: Adapter,
    open_device: Callable[[Adapter], Device],
    devices: DeviceOptions,
    look_ahead: int | None,
    chunk: int | None,
    cache: CacheOptions,
    progress: Progress | None,
) -> Loaded:
    """Loads the model onto a GPU, with its tuned settings unless others are given."""
    # Imports all kernels, which a model in numpy does not need.
    from ..kernels.tuned import find as find_tuned
    from ..ops.self_test import tuning_for

    file, model, layers = opened.file, opened.model, devices.layers_per_submit
    gpu = open_device(adapter)
    try:
        companions = opened.companions(gpu)
        cache = with_context(gpu, file, model, devices.offload, companions, **cache)
        found = find_tuned(adapter, gpu.capabilities, devices.tuned)
        if found is not None:
            if look_ahead is None and found.look_ahead is not None:
                cache["look_ahead"] = found.look_ahead
            layers = found.layers_per_submit if layers is None else layers
        rows = max(opened.min_rows(cache.get("slots", 1)), chunk or default_chunk(gpu, found))
        runner = GpuRunner(
            gpu, file, model, chunk_size=rows, tuning=tuning_for(gpu, found),
            layers_per_submit=layers or 0, progress=progress, adapters=opened.adapters, offload=devices.offload,
            draft=opened.drafts.model, projector=companions.projector, **cache,
        )  # fmt: skip
    except BaseException:
        gpu.close()
        raise
    return Loaded(runner, adapter.name, [gpu])
