"""Loads a model onto several devices: opens them, lays the layers out, and tunes each part for its device."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..engine.cache.config import DEFAULT_CHUNK
from ..engine.fit import ALONE, Beside
from ..engine.offload import ON_GPU, Offload
from ..engine.split import SplitRunner
from ..engine.split_layout import Layout, Split, lay_out
from ..gguf.file import GGUFFile
from ..gpu.adapters import Adapter, Choice
from ..gpu.device import Device
from ..gpu.loader import Progress
from ..gpu.matrix_units import MatrixUnits, refuse_cpu
from ..kernels.tuned import Tuned
from ..kernels.tuned import find as find_tuned
from ..models.registry import Model
from ..ops.open_device import open_device
from ..ops.self_test import tuning_for


def load_split(
    file: GGUFFile,
    model: Model,
    choices: Sequence[Choice],
    split: Split,
    options: dict[str, Any],
    *,
    chunk_size: int | None,
    matrix_units: MatrixUnits,
    folder: Path | None,
    portable: bool = False,
    checked: bool = False,
    layers_per_submit: int | None = None,
    beside: Beside = ALONE,
    offload: Offload = ON_GPU,
    progress: Progress | None = None,
) -> tuple[SplitRunner, Layout] | Choice:
    """The model on these devices; or the one of them that has memory for all of it, where nothing is to be split."""
    if all(choice.adapter is None for choice in choices):
        refuse_cpu(matrix_units)
    open_gpu = partial(open_device, matrix_units=matrix_units, folder=folder, portable=portable, checked=checked)
    layout = lay_out(
        file, model, choices, split, open_gpu, chunk_size=chunk_size or DEFAULT_CHUNK, beside=beside,
        offload=offload, **options,
    )  # fmt: skip
    try:
        if len(layout.parts) == 1:
            layout.close()
            return layout.devices[0].choice
        found = [_tuned(one.choice.adapter, one.gpu, folder) for one in layout.devices]
        chunks = [one.chunk_size for one in found if one is not None and one.chunk_size]
        tunings = []
        for device, tuned in zip(layout.devices, found, strict=True):
            own = layers_per_submit if tuned is None or layers_per_submit is not None else tuned.layers_per_submit
            gpu = device.gpu
            tunings.append({} if gpu is None else {"tuning": tuning_for(gpu, tuned), "layers_per_submit": own or 0})
        return layout.runner(file, tunings, chunk_size or min(chunks, default=DEFAULT_CHUNK), progress), layout
    except BaseException:
        layout.close()
        raise


def _tuned(adapter: Adapter | None, gpu: Device | None, folder: Path | None) -> Tuned | None:
    """What is known of the best settings of a device."""
    return None if adapter is None or gpu is None else find_tuned(adapter, gpu.capabilities, folder)
