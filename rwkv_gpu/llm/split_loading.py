"""Loads a model onto several devices: opens them, lays out the layers, and tunes each part for its device."""

from collections.abc import Sequence

from ..engine.cache.config import DEFAULT_CHUNK, CacheOptions
from ..engine.split_layout import Layout, OpenDevice, PartTuning, lay_out
from ..gpu.adapters import Choice
from ..gpu.loader import Progress
from ..gpu.matrix_units import refuse_cpu
from ..kernels.tuned import Tuned
from ..kernels.tuned import find as find_tuned
from ..ops.self_test import tuning_for
from .load_options import DeviceOptions
from .runners import Loaded, Opened


def load_split(
    opened: Opened,
    choices: Sequence[Choice],
    devices: DeviceOptions,
    chunk: int | None,
    cache: CacheOptions,
    progress: Progress | None = None,
) -> Loaded | Choice:
    """Loads the model onto these devices. Returns a device instead if that one can hold the whole model."""
    if all(choice.adapter is None for choice in choices):
        refuse_cpu(devices.matrix_units)
    layout = lay_out(
        opened.file, opened.model, choices, devices.split, devices.open, chunk_size=chunk or DEFAULT_CHUNK,
        companions=opened.companions(None), offload=devices.offload, **cache,
    )  # fmt: skip
    try:
        if len(layout.parts) == 1:
            layout.close()
            return layout.devices[0].choice
        return _loaded(opened, layout, devices, chunk, progress)
    except BaseException:
        layout.close()
        raise


def _loaded(
    opened: Opened, layout: Layout, devices: DeviceOptions, chunk: int | None, progress: Progress | None
) -> Loaded:
    """Loads the parts onto their devices, each with its own tuning."""
    found = [_tuned(one, devices) for one in layout.devices]
    tunings: list[PartTuning | None] = []
    for one, tuned in zip(layout.devices, found, strict=True):
        layers = devices.layers_per_submit
        if layers is None and tuned is not None:
            layers = tuned.layers_per_submit
        tunings.append(None if one.gpu is None else PartTuning(tuning_for(one.gpu, tuned), layers or 0))
    chunks = [one.chunk_size for one in found if one is not None and one.chunk_size]
    runner = layout.runner(opened.file, tunings, chunk or min(chunks, default=DEFAULT_CHUNK), progress)
    return Loaded(runner, " + ".join(layout.names), [one.gpu for one in layout.devices])


def _tuned(device: OpenDevice, devices: DeviceOptions) -> Tuned | None:
    """The best known settings of a device."""
    adapter, gpu = device.choice.adapter, device.gpu
    return None if adapter is None or gpu is None else find_tuned(adapter, gpu.capabilities, devices.tuned)
