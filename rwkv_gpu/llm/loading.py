"""Opens a GGUF file: reads and checks it, chooses a device, and puts the parts of a model together."""

import contextlib
import inspect
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..builtin import builtin_model
from ..engine.adapters import adapters_of
from ..engine.cache.config import (
    DEFAULT_CHECKPOINT_INTERVAL,
    DEFAULT_LOOK_AHEAD,
    DEFAULT_SEQUENCES,
)
from ..engine.compact import Compact
from ..engine.engine import Engine
from ..engine.fit import Beside, with_context
from ..engine.gpu_runner import GpuRunner
from ..engine.host_runner import HostRunner, rows_on_host
from ..engine.initial_state import digest_of, read_initial_state
from ..engine.offload import MOST_LAYERS, Offload
from ..engine.runner import Runner
from ..engine.split_layout import choices_of, device_names, shares_of
from ..engine.state_file import fingerprint
from ..errors import BadInput
from ..gguf.file import GGUFFile
from ..gguf.formats import SIZES
from ..gpu.adapters import Choice
from ..gpu.loader import Progress
from ..gpu.matrix_units import CHOICES, MatrixUnits, refuse_cpu
from ..models.registry import Model, is_encoder, load_model
from ..ops.kv_format import KVType
from ..ops.vocabulary import PAGE
from ..stores import Store
from ..text.tokenizer import load_tokenizer
from . import validate
from .drafts import drafts_of
from .driver import MOST_REQUESTS
from .hub import Hub
from .hub_names import is_hub_name
from .info import Info
from .model import LLM
from .model_file import ModelFile
from .pooling import Pooling
from .stored_states import stored_states

RANGES = {
    "chunk_size": (1, 1 << 16),
    "sequences": (1, 256),
    "context": (1, 1 << 32),
    "tokens": (1, 1 << 40),
    "cache_bytes": (0, 1 << 50),
    "checkpoint_interval": (1, 1 << 30),
    "max_requests": (1, 1 << 24),
    "draft_tokens": (1, 15),
    "context_shift": (0, 1 << 32),
    "look_ahead": (0, 16),
    "gpu_layers": (-1, MOST_LAYERS),
    "n_cpu_moe": (0, MOST_LAYERS),
    "layers_per_submit": (0, 1 << 16),
}
OPTIONAL = (
    *("context_shift", "cache_bytes", "chunk_size", "context", "tokens", "look_ahead", "layers_per_submit"),
    "gpu_layers",
    "draft_tokens",
)
DEFAULT_CHUNK = 512
ENCODER_CONTEXT = 2048  # at most, unless more is asked for; and the rows of a step, which has several texts
ALIASES = {
    "model": "path",  # vLLM
    "model_path": "path",  # llama-cpp-python
    "n_ctx": "context",  # llama-cpp-python; 0 is what the model was trained on
    "max_model_len": "context",  # vLLM
    "n_batch": "chunk_size",  # llama-cpp-python
    "max_num_seqs": "sequences",  # vLLM
    "n_gpu_layers": "gpu_layers",  # llama-cpp-python
    "draft_model": "draft",
    "lora_path": "lora",  # llama-cpp-python
    "filename": "file",  # llama-cpp-python's from_pretrained
    "repo_id": "path",
    "tensor_split": "split",  # llama-cpp-python
}


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
    """Opens a GGUF model on a device, the built-in one where no path is given. The file is read once and closed.

    `path` may be the name of a repository of the Hugging Face hub: `hf.co/OWNER/NAME:Q4_K_M`, or `OWNER/NAME` with
    `file` for a file in it. It is downloaded at first use; `hub` says where from, to which folder, with which token.
    `device` is auto, cpu, an index or a part of a name. Several, as "0,1" or a list, run one model together: `split` is
    how many layers each of them gets, as shares such as "3,1" or (3, 1). By default, and with "auto", it goes by their
    memory and speed. `chunk_size` is how many tokens of a prompt go in one step;
    `sequences` is how many requests run at a time, the others wait; `max_requests` is how many may run and wait, and
    more get `QueueFull`; `cache_bytes` is how much is kept of sequences that have ended, for those that begin alike (by
    default 256 MiB and the pages of one whole context; larger states have room for 16 within 1 GiB, or for four);
    `checkpoint_interval` is how many tokens, at least, lie between two states that are stored on the way through a text
    (models with a recurrent state), so that a changed text is computed again from the last of them that fits;
    `look_ahead` is how many steps may be begun before the tokens of the first
    are known; where steps take long, they are two at most. `progress` is told how many bytes of the file are loaded,
    and of how many.
    For models that attend, `context` is how many tokens a sequence may have, prompt and answer together (by default as
    many as it was trained on, or as there is memory for), `tokens` how many all of them may have together (as many
    as one), and `kv` how keys and values are stored: f16, f32, or
    quantised, q8 or q4 (latents, and heads that are no multiple of 32, stay f16).
    `lookup` drafts tokens from what followed the same words before, `draft` is the file of a small model with the same
    vocabulary that drafts them; one step then verifies up to `draft_tokens` of them, by default 15, or 7 where a model
    has a recurrent state. Answers stay the same, and drafts are as long as they make them faster.
    `context_shift` lets answers go on at the end of the context: the first so many tokens stay (in a chat, the
    messages of the system), half of the others are dropped, and the rest is computed again. Models without attention
    need none.
    `lora` is a LoRA adapter in a GGUF file, or several, each a path or a pair of a path and a scale. A request may have
    scales of its own, `lora={"name": 0.5}`, by the names of the files; those that it does not name are off.
    `initial_state` is a file with a tuned state that every text of an RNN begins with: GGUF, or of torch.save.
    `tuned` is the folder where `rwkv-gpu tune` keeps what it finds: kernels are chosen by it, how many steps are begun
    ahead, and with a chunk size of auto the chunk, too. `layers_per_submit` splits a step, 0 leaves it whole.
    `digests` is the folder where digests of model files are kept: saved chats compare them, and a large file is then
    read for it once.
    `matrix_units` is auto, on or off: auto uses them where `rwkv-gpu tune` found them right and faster on this device,
    and kept that in `tuned`; on wherever they are right. They are experimental in wgpu: see docs/matrix-units.md.
    `store` is where the states of chats are kept beyond this process, so that another one goes on with them: a
    directory, a URL such as valkey://localhost:6379, or a store of `rwkv_gpu.stores`. Only who has the same `store_key`
    reads them; a directory has a key of its own by default. States of one `tenant` are never another's.
    Weights that do not fit on a GPU with memory of its own stay in main memory, where the GPU reads them over its bus.
    `gpu_layers` is how many layers are on the GPU, the last ones, and the output counts as one; `cpu_moe` leaves the
    experts of all layers in main memory, `n_cpu_moe` those of the first so many; by default as much is on the GPU as
    fits. `gpu_memory` is what the model may take of the GPU's memory: bytes, or a text such as "8G". What it leaves
    free is a cache of the experts that were used last.
    `portable` asks of the device no more than every one has, `checked` has the driver check each index; both are slow.
    """
    if others:
        return load(**_own_options(others, locals()))
    chunk = None if chunk_size == "auto" else chunk_size
    check(
        chunk_size=chunk, sequences=sequences, context=context, tokens=tokens, cache_bytes=cache_bytes,
        checkpoint_interval=checkpoint_interval, max_requests=max_requests, look_ahead=look_ahead,
        layers_per_submit=layers_per_submit, gpu_layers=gpu_layers, n_cpu_moe=n_cpu_moe,
        draft_tokens=draft_tokens, context_shift=context_shift,
    )  # fmt: skip
    validate.called("progress", progress)
    offload = Offload.of(gpu_layers, bool(validate.truth("cpu_moe", cpu_moe)), n_cpu_moe, gpu_memory)
    files = hub or Hub()
    file_path = _file_of(path, file, files)
    draft_path = None if draft is None else _named("draft", draft, files)
    folder = None if tuned is None else validate.path("tuned", tuned)
    digest_folder = None if digests is None else validate.path("digests", digests)
    names = device_names(device)
    shares = shares_of(split, len(names))
    exchange = partial(stored_states, store, store_key, tenant) if store is not None else None
    if matrix_units not in CHOICES:
        raise BadInput(f"matrix_units is {matrix_units!r}; it must be auto, on or off")
    with contextlib.ExitStack() as stack:
        gguf = stack.enter_context(GGUFFile.open(file_path))
        adapters = adapters_of(lora, gguf, partial(_named, "lora", hub=files))
        gguf.apart = adapters.apart
        model = load_model(gguf)
        initial = None
        if initial_state is not None:
            path_of_state = validate.path("initial_state", initial_state)
            initial = read_initial_state(path_of_state, model, gguf.str("general.architecture"))
        drafts = stack.enter_context(drafts_of(lookup, draft_path, draft_tokens, gguf, model))
        tokenizer, pooling = load_tokenizer(gguf.metadata), Pooling.of(gguf, encoder=is_encoder(model))
        chunk, context, tokens = room_of(model, sequences, chunk, context, tokens)
        choices = choices_of(names)
        options: dict[str, Any] = {
            "slots": sequences, "context": context, "kv": kv, "tokens": tokens, "cache_bytes": cache_bytes,
            "checkpoint_interval": checkpoint_interval,
            "look_ahead": DEFAULT_LOOK_AHEAD if look_ahead is None else look_ahead, "drafts": drafts.most,
            "initial": int(initial is not None),
        }  # fmt: skip
        beside = Beside(adapters, drafts.model)
        runner: Runner
        loaded: Any = choices[0]
        if len(choices) > 1:
            from .split_loading import load_split  # with all kernels: a model in numpy starts sooner without

            loaded = load_split(
                gguf, model, choices, shares, options, chunk_size=chunk,
                matrix_units=matrix_units, folder=folder, portable=portable, checked=checked,
                layers_per_submit=layers_per_submit, beside=beside, progress=progress, offload=offload,
            )  # fmt: skip
        if not isinstance(loaded, Choice):
            runner, layout = loaded
            gpus, name = [one.gpu for one in layout.devices if one.gpu is not None], " + ".join(layout.names)
            try:
                speculator = drafts.speculator(runner, layout.devices[-1].gpu)
            except BaseException:
                runner.close()
                raise
        elif loaded.adapter is None:
            gpus, name = [], "cpu"
            refuse_cpu(matrix_units)
            options |= with_context(None, gguf, model, beside=beside, **options)
            rows = rows_on_host(model, chunk or DEFAULT_CHUNK, options.get("slots", 1))
            runner = HostRunner(gguf, model, chunk_size=rows, adapters=adapters, **options)
            speculator = drafts.speculator(runner, None)
            if progress is not None:
                progress(gguf.nbytes, gguf.nbytes)
        else:
            # With all kernels: a model in numpy starts sooner without.
            from ..kernels.tuned import find as find_tuned
            from ..ops.open_device import open_device
            from ..ops.self_test import tuning_for

            opened = open_device(loaded.adapter, matrix_units, folder, portable=portable, checked=checked)
            gpus, name = [opened], loaded.adapter.name
            try:
                options["offload"] = offload
                options |= with_context(opened, gguf, model, beside=beside, **options)
                options["chunk_size"] = chunk or DEFAULT_CHUNK
                found = find_tuned(loaded.adapter, opened.capabilities, folder)
                if found is not None:
                    if look_ahead is None and found.look_ahead is not None:
                        options["look_ahead"] = found.look_ahead
                    options["chunk_size"] = chunk or found.chunk_size or DEFAULT_CHUNK
                    layers_per_submit = found.layers_per_submit if layers_per_submit is None else layers_per_submit
                options |= {"tuning": tuning_for(opened, found), "layers_per_submit": layers_per_submit or 0}
                options |= {"progress": progress, "adapters": adapters, "draft": drafts.model}
                runner = GpuRunner(opened, gguf, model, **options)
                speculator = drafts.speculator(runner, opened)
            except BaseException:
                opened.close()
                raise
        info = _info(gguf, runner, name, sequences, matrix_units=any(gpu.capabilities.fragment > 0 for gpu in gpus))
        model_file = ModelFile(gguf.paths, info.fingerprint, digest_folder)
        form = f"{info.architecture} {runner.cache_config.kind} {adapters.digest()} {digest_of(initial)}"
        compact = None if kv in ("q8", "q4") else Compact(model.caches)
        states = None if exchange is None else exchange(model_file, form, compact)
        engine = Engine(runner, speculator=speculator, context_shift=context_shift, initial_state=initial)
        return LLM(engine, tokenizer, gguf.metadata, info, model_file, max_requests, states, pooling)


def room_of(
    model: Model, sequences: int, chunk: int | None, context: int | None, tokens: int | None = None
) -> tuple[int | None, int | None, int | None]:
    """Rows of a step, tokens of a sequence and of all: as asked, and of an encoder whole texts in a step.

    Several together, where no chunk size but the default is asked for: a text of 512 alone leaves a GPU idle.
    """
    if not is_encoder(model):
        return chunk, context, tokens
    longest = context or min(model.context or ENCODER_CONTEXT, max(chunk or 0, ENCODER_CONTEXT))
    rows = max(ENCODER_CONTEXT if chunk in (None, DEFAULT_CHUNK) else chunk, longest)
    return rows, longest, tokens or rows + PAGE * sequences  # each text may end at the start of a page


def _file_of(path: str | os.PathLike[str] | None, file: str | None, hub: Hub) -> Path:
    """Where the model's file lies here."""
    if file is not None and not (isinstance(path, str) and isinstance(file, str)):
        raise BadInput(f"file is {file!r}; it must name a file of a repository on the hub, and path that repository")
    if isinstance(path, str) and file is not None:
        return hub.find(path, file)
    return builtin_model() if path is None else _named("path", path, hub)


def _named(option: str, path: str | os.PathLike[str], hub: Hub) -> Path:
    """The file of a path, or of a name on the hub."""
    return hub.find(path) if isinstance(path, str) and is_hub_name(path) else validate.path(option, path)


def _own_options(others: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All options by our names; `others` are those that load does not have by itself."""
    own = {name: given[name] for name in inspect.signature(load).parameters if name != "others"}
    defaults = {name: one.default for name, one in inspect.signature(load).parameters.items()}
    for name, value in others.items():
        ours = ALIASES.get(name)
        if ours is None:
            raise BadInput(f"{name} is no option of load; known: {', '.join(own)}")
        if own[ours] is not defaults[ours]:
            raise BadInput(f"{ours} is given twice, also as {name}; give it once")
        own[ours] = None if name == "n_ctx" and value == 0 else value
    return own


def check(**asked: object) -> None:
    """Refuses whole numbers that are out of their range."""
    for name, value in asked.items():
        low, high = RANGES[name]
        if value is None and name in OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadInput(f"{name} is {value!r}; it must be a whole number from {low} to {high}")


def _info(file: GGUFFile, runner: Runner, device: str, sequences: int, *, matrix_units: bool) -> Info:
    formats: Counter[str] = Counter()
    for tensor in file.tensors.values():
        formats[SIZES[tensor.type].name] += math.prod(tensor.shape)
    architecture = file.str("general.architecture")
    return Info(
        name=file.str("general.name", default=file.path.stem),
        architecture=architecture,
        parameters=sum(formats.values()),
        format=formats.most_common(1)[0][0],
        nbytes=file.nbytes,
        vocabulary=runner.vocabulary,
        context=runner.context,
        trained_context=file.int(f"{architecture}.context_length", default=0) or None,
        chunk_size=runner.chunk_size,
        sequences=sequences,
        device=device,
        matrix_units=matrix_units,
        encoder=is_encoder(runner.model),
        fingerprint=fingerprint(file),
        kv=tuple(dict.fromkeys(runner.cache_config.format_of(cache).name for cache in runner.model.caches)),
        adapters=tuple((one.name, one.scale) for one in runner.adapters.adapters),
        memory=runner.fit if isinstance(runner, GpuRunner) else None,
    )
