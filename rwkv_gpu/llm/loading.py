"""Opens a GGUF file: reads and checks it, chooses a device, and assembles the model."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..engine.cache.kv import Compact
from ..engine.engine import Engine
from ..engine.initial_state import digest_of
from ..engine.split_layout import choices_of, device_names, shares_of
from ..gguf.file import GGUFFile
from ..gguf.sample import check_sample
from ..gpu.adapters import Adapter, Choice
from ..gpu.device import Device
from ..gpu.loader import Progress
from ..models.differences import warn_of_differences
from ..models.lengthen import RopeScaling, lengthen
from ..models.registry import is_encoder, load_model
from ..text.tokenizer import load_tokenizer
from . import folders, validate
from .decision_head import DecisionHead
from .drafts import DraftOptions, drafts_of
from .images import MediaInput
from .info import Info
from .load_options import DeviceOptions, Files, RoomOptions, StoreOptions, check, offload_of
from .model_file import ModelFile
from .pooling import Pooling
from .runners import Loaded, Opened, load_on_gpu, load_on_host, opened_early


def parts_of(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Loads the parts of an open model, from values of all options of `load`."""
    get = options.__getitem__
    chunk = None if get("chunk_size") == "auto" else get("chunk_size")
    names = "sequences", "context", "kv", "tokens", "cache_bytes", "checkpoint_interval", "look_ahead", "states"
    room = RoomOptions(chunk, *map(get, names))
    check(max_requests=get("max_requests"), context_shift=get("context_shift"))
    validate.called("progress", get("progress"))
    offload = offload_of(*map(get, ("gpu_layers", "cpu_moe", "n_cpu_moe", "gpu_memory")))
    device, tuned = device_names(get("device")), validate.optional_path("tuned", get("tuned"))
    devices = DeviceOptions(
        device, shares_of(get("split"), len(device)), offload, get("matrix_units"),
        tuned or folders.tuned_folder(), *map(get, ("layers_per_submit", "portable", "checked")),
    )  # fmt: skip
    files = Files.of(*map(get, ("path", "file", "draft", "initial_state", "lora", "hub", "override_kv", "mmproj")))
    rope = RopeScaling(get("rope_scaling"), get("rope_scale"), get("yarn_orig_ctx") or None)
    files = replace(files, rope=rope)
    if files.preset is not None and room.context is None:
        room = replace(room, context=files.preset.context)
    heads = not validate.truth("no_draft", get("no_draft"))
    drafts = DraftOptions(get("lookup"), files.draft, get("draft_tokens"), heads)
    digests = validate.optional_path("digests", get("digests"))
    states = StoreOptions(get("store"), get("store_key"), get("tenant"), digests)
    return _load(files, devices, room, drafts, states, get("max_requests"), get("context_shift"), get("progress"))


def _load(
    files: Files,
    devices: DeviceOptions,
    room: RoomOptions,
    draft_options: DraftOptions,
    store: StoreOptions,
    max_requests: int,
    context_shift: int | None,
    progress: Progress | None,
) -> tuple[Any, ...]:
    """Loads the parts from checked options."""
    with contextlib.ExitStack() as stack:
        gguf = stack.enter_context(GGUFFile.open(files.path))
        gguf.override(files.overrides)
        adapters = files.adapters(gguf)
        gguf.separate = adapters.separate
        model = load_model(gguf)
        if lengthen(gguf, model, files.rope, room.context):
            model = load_model(gguf)
        choices = choices_of(devices.names)
        open_device = stack.enter_context(opened_early(devices, choices))
        check_sample(gguf)
        warn_of_differences(gguf)
        initial = files.first_state(model, gguf.str("general.architecture"))
        drafts = stack.enter_context(drafts_of(draft_options, gguf, model))
        if len(choices) > 1:
            drafts = drafts.without_head()
        tokenizer, pooling = load_tokenizer(gguf.metadata), Pooling.of(gguf, encoder=is_encoder(model))
        decision_head = DecisionHead.of(gguf)
        projector = files.projector(gguf, model, len(devices.names))
        opened = Opened(
            drafts.joined or gguf, drafts.in_use(model), adapters, drafts,
            has_initial_state=initial is not None, projector=projector,
        )  # fmt: skip
        loaded = load_runner(opened, devices, choices, open_device, room, progress)
        speculator, runner = loaded.speculator(drafts), loaded.runner
        info = Info.of(gguf, runner, loaded.device, room.sequences, loaded.gpus, drafts.fault)
        model_file = ModelFile(gguf.paths, info.fingerprint, store.digests)
        layout = f"{info.architecture} {runner.cache_config.kind} {adapters.digest()} {digest_of(initial)}"
        layout += f" {sorted(gguf.overridden.items())}" if gguf.overridden else ""
        compact = None if room.kv in ("q8", "q4") else Compact(model.caches)
        states = store.open(model_file, layout, compact)
        media = None
        if projector is not None:
            from ..vision.media_encoders import media_encoders_for  # most models have no projector

            media = media_encoders_for(projector, gguf, model, loaded.gpus[-1])
        engine = Engine(runner, speculator=speculator, context_shift=context_shift, initial_state=initial, media=media)
        media_input = None if projector is None else MediaInput(projector, info.context)
        return (
            engine, tokenizer, gguf.metadata, info, model_file, max_requests, states, pooling, media_input,
            files.preset, decision_head,
        )  # fmt: skip


def load_runner(
    opened: Opened,
    devices: DeviceOptions,
    choices: Sequence[Choice],
    open_device: Callable[[Adapter], Device],
    room: RoomOptions,
    progress: Progress | None,
) -> Loaded:
    """Loads the model onto the requested devices."""
    chunk, cache = room.cache(opened.model, opened.drafts.most, initial=opened.has_initial_state)
    choice = choices[0]
    if len(choices) > 1:
        from .split_loading import load_split  # imports all kernels, which a model in numpy does not need

        loaded = load_split(opened, choices, devices, chunk, cache, progress)
        if isinstance(loaded, Loaded):
            return loaded
        choice = loaded
    if choice.adapter is None:
        return load_on_host(opened, devices, chunk, cache, progress)
    return load_on_gpu(opened, choice.adapter, open_device, devices, room.look_ahead, chunk, cache, progress)
