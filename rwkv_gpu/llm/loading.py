"""Opens a GGUF file: reads and checks it, chooses a device, and assembles the model."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..engine.cache.config import DEFAULT_CHECKPOINT_INTERVAL, DEFAULT_CHUNK, DEFAULT_SEQUENCES
from ..engine.cache.kv import Compact
from ..engine.engine import Engine
from ..engine.initial_state import digest_of
from ..engine.split_layout import choices_of, device_names, shares_of
from ..gguf.file import GGUFFile
from ..gguf.override import Override
from ..gpu.loader import Progress
from ..gpu.matrix_units import MatrixUnits
from ..models.differences import warn_of_differences
from ..models.registry import is_encoder, load_model
from ..ops.kv_format import KVType
from ..stores import Store
from ..text.tokenizer import load_tokenizer
from . import folders, validate
from .drafts import DraftOptions, drafts_of
from .driver import MOST_REQUESTS
from .hub import Hub
from .info import Info
from .load_options import DeviceOptions, Files, RoomOptions, StoreOptions, check, offload_of, own_options
from .model import LLM
from .model_file import ModelFile
from .pooling import Pooling
from .runners import Loaded, Opened, load_on_gpu, load_on_host


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    device: str | int | Sequence[str | int] = "auto",
    split: str | Sequence[float] | None = None,
    chunk_size: int | Literal["auto"] = DEFAULT_CHUNK,
    sequences: int = DEFAULT_SEQUENCES,
    context: int | None = None,
    kv: KVType = "f16",
    tokens: int | None = None,
    cache_bytes: int | None = None,
    checkpoint_interval: int = DEFAULT_CHECKPOINT_INTERVAL,
    max_requests: int = MOST_REQUESTS,
    look_ahead: int | None = None,
    progress: Progress | None = None,
    layers_per_submit: int | None = None,
    portable: bool = False,
    checked: bool = False,
    tuned: str | os.PathLike[str] | None = None,
    digests: str | os.PathLike[str] | None = None,
    matrix_units: MatrixUnits = "auto",
    lookup: bool = False,
    draft: str | os.PathLike[str] | None = None,
    draft_tokens: int | None = None,
    context_shift: int | None = None,
    lora: Any = None,
    initial_state: str | os.PathLike[str] | None = None,
    override_kv: Mapping[str, Override] | Sequence[str] | None = None,
    file: str | None = None,
    hub: Hub | None = None,
    store: str | os.PathLike[str] | Store | None = None,
    store_key: bytes | None = None,
    tenant: str = "",
    gpu_layers: int | None = None,
    cpu_moe: bool = False,
    n_cpu_moe: int = 0,
    gpu_memory: int | str | None = None,
    **others: Any,
) -> LLM:
    """Opens a GGUF model on a device; without `path`, the built-in one. The file is read once and closed.

    `path` may name a repository on the Hugging Face hub: `hf.co/OWNER/NAME:Q4_K_M`, or `OWNER/NAME` with `file`.
    `device` is auto, cpu, an index, a part of a name, or several of these. docs/library.md explains every option.
    """
    if others:
        return load(**own_options(load, others, locals()))
    chunk = None if chunk_size == "auto" else chunk_size
    room = RoomOptions(chunk, sequences, context, kv, tokens, cache_bytes, checkpoint_interval, look_ahead)
    check(max_requests=max_requests, context_shift=context_shift)
    validate.called("progress", progress)
    offload, names = offload_of(gpu_layers, cpu_moe, n_cpu_moe, gpu_memory), device_names(device)
    devices = DeviceOptions(
        names, shares_of(split, len(names)), offload, matrix_units,
        validate.optional_path("tuned", tuned) or folders.default_tuned_folder(), layers_per_submit, portable, checked,
    )  # fmt: skip
    files = Files.of(path, file, draft, initial_state, lora, hub, override_kv)
    drafts = DraftOptions(lookup, files.draft, draft_tokens)
    states = StoreOptions(store, store_key, tenant, validate.optional_path("digests", digests))
    return _load(files, devices, room, drafts, states, max_requests, context_shift, progress)


def _load(
    files: Files,
    devices: DeviceOptions,
    room: RoomOptions,
    draft_options: DraftOptions,
    store: StoreOptions,
    max_requests: int,
    context_shift: int | None,
    progress: Progress | None,
) -> LLM:
    """Loads the model from checked options."""
    with contextlib.ExitStack() as stack:
        gguf = stack.enter_context(GGUFFile.open(files.path))
        gguf.override(files.overrides)
        adapters = files.adapters(gguf)
        gguf.apart = adapters.apart
        model = load_model(gguf)
        warn_of_differences(gguf)
        initial = files.first_state(model, gguf.str("general.architecture"))
        drafts = stack.enter_context(drafts_of(draft_options, gguf, model))
        tokenizer, pooling = load_tokenizer(gguf.metadata), Pooling.of(gguf, encoder=is_encoder(model))
        opened = Opened(gguf, model, adapters, drafts, has_initial_state=initial is not None)
        loaded = load_runner(opened, devices, room, progress)
        speculator, runner = loaded.speculator(drafts), loaded.runner
        info = Info.of(gguf, runner, loaded.device, room.sequences, gpus=loaded.gpus)
        model_file = ModelFile(gguf.paths, info.fingerprint, store.digests)
        layout = f"{info.architecture} {runner.cache_config.kind} {adapters.digest()} {digest_of(initial)}"
        layout += f" {sorted(files.overrides.items())}" if files.overrides else ""
        compact = None if room.kv in ("q8", "q4") else Compact(model.caches)
        states = store.open(model_file, layout, compact)
        engine = Engine(runner, speculator=speculator, context_shift=context_shift, initial_state=initial)
        return LLM(engine, tokenizer, gguf.metadata, info, model_file, max_requests, states, pooling)


def load_runner(opened: Opened, devices: DeviceOptions, room: RoomOptions, progress: Progress | None = None) -> Loaded:
    """Loads the model onto the requested devices."""
    chunk, cache = room.cache(opened.model, opened.drafts.most, initial=opened.has_initial_state)
    choices = choices_of(devices.names)
    choice = choices[0]
    if len(choices) > 1:
        from .split_loading import load_split  # imports all kernels, which a model in numpy does not need

        loaded = load_split(opened, choices, devices, chunk, cache, progress)
        if isinstance(loaded, Loaded):
            return loaded
        choice = loaded
    if choice.adapter is None:
        return load_on_host(opened, devices, chunk, cache, progress)
    return load_on_gpu(opened, choice.adapter, devices, room.look_ahead, chunk, cache, progress)
