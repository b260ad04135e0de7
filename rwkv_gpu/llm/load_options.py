"""The options of `load` in groups. Each group checks its values when created."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..builtin import builtin_model
from ..engine.adapters import Adapters, adapters_of
from ..engine.cache.config import (
    DEFAULT_CHECKPOINT_INTERVAL,
    DEFAULT_CHUNK,
    DEFAULT_LOOK_AHEAD,
    DEFAULT_SEQUENCES,
    CacheOptions,
)
from ..engine.cache.kv import Compact
from ..engine.initial_state import StateArrays, read_initial_state
from ..engine.offload import MAX_LAYERS, ON_GPU, Offload
from ..engine.sampling_params import Span
from ..engine.split_layout import Split
from ..errors import BadFile, BadInput
from ..gguf.file import GGUFFile
from ..gguf.override import Override, overrides_of
from ..gpu.adapters import Adapter
from ..gpu.device import Device
from ..gpu.matrix_units import CHOICES, MatrixUnits
from ..models.lengthen import RopeScaling
from ..models.registry import Model, reads_prompts_whole, reads_whole_texts
from ..ops.kv_format import KVType
from ..ops.vocabulary import PAGE, StateType
from ..stores import Store
from ..vision.projector_names import projectors_next_to
from . import validate
from .completion import ALIASES as SETTING_ALIASES
from .completion import KNOWN
from .hub import Hub
from .hub_names import BUILTIN, is_hub_name, is_path, is_preset
from .model_file import ModelFile
from .preset import Preset, read_preset
from .stored_states import StoredStates, stored_states

if TYPE_CHECKING:
    from ..vision.media_projector import MediaProjector

WHOLE, OPTIONAL = partial(Span, whole=True), partial(Span, whole=True, optional=True)
RANGES = {
    "chunk_size": OPTIONAL(1, 1 << 16),
    "sequences": WHOLE(1, 256),
    "context": OPTIONAL(1, 1 << 32),
    "tokens": OPTIONAL(1, 1 << 40),
    "cache_bytes": OPTIONAL(0, 1 << 50),
    "checkpoint_interval": WHOLE(1, 1 << 30),
    "max_requests": WHOLE(1, 1 << 24),
    "draft_tokens": OPTIONAL(1, 15),
    "context_shift": OPTIONAL(0, 1 << 32),
    "look_ahead": OPTIONAL(0, 16),
    "gpu_layers": OPTIONAL(-1, MAX_LAYERS),
    "n_cpu_moe": WHOLE(0, MAX_LAYERS),
    "layers_per_submit": OPTIONAL(0, 1 << 16),
}
ENCODER_CONTEXT = 2048  # maximum default context; also rows of a step, which holds several texts
ALIASES = {
    "model": "path",  # vLLM
    "model_path": "path",  # llama-cpp-python
    "n_ctx": "context",  # llama-cpp-python; 0 means the training length
    "max_model_len": "context",  # vLLM
    "n_batch": "chunk_size",  # llama-cpp-python
    "max_num_seqs": "sequences",  # vLLM
    "n_gpu_layers": "gpu_layers",  # llama-cpp-python
    "draft_model": "draft",
    "lora_path": "lora",  # llama-cpp-python
    "filename": "file",  # llama-cpp-python's from_pretrained
    "repo_id": "path",
    "tensor_split": "split",  # llama-cpp-python
    "kv_overrides": "override_kv",  # llama-cpp-python
}
# llama-cpp-python and vLLM; nothing is printed, the GPU computes, and attention always runs in fused kernels
WITHOUT_EFFECT = (
    "verbose", "n_threads", "n_threads_batch", "n_ubatch", "use_mmap", "use_mlock", "flash_attn", "offload_kqv",
    "logits_all", "enforce_eager", "trust_remote_code", "enable_prefix_caching",
)  # fmt: skip
# names of vLLM and llama-cpp-python that are not accepted, with what to use here
INSTEAD = {
    **dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size"), 'give device="0,1" and split="auto"'),
    **dict.fromkeys(("kv_cache_dtype", "type_k", "type_v"), 'give kv="f16", "q8", "q4" or "f32"'),
    **dict.fromkeys(("dtype", "quantization"), "weights keep the format of the file"),
    "tokenizer": "the tokenizer is in the file",
    "gpu_memory_utilization": 'give gpu_memory, a size such as "8G"',
    "main_gpu": "give device",
    "embedding": "leave it out; every model embeds",
    "chat_format": "the chat template is in the file",
    "system": "chat takes it",
    **dict.fromkeys((*KNOWN, *SETTING_ALIASES), "generate and chat take it"),
}
Name = str | os.PathLike[str]  # a path, or a name on the hub


@dataclass(frozen=True)
class Files:
    """The files of a model: its own, adapters, a draft model and a tuned state."""

    path: Path
    draft: Path | None
    initial_state: Path | None
    lora: Any  # a value that `adapters_of` accepts
    hub: Hub
    overrides: Mapping[str, Override]  # replaced keys of the model's metadata
    rope: RopeScaling = field(default_factory=RopeScaling)
    mmproj: Path | None = None  # a projector
    finds_mmproj: bool = False  # True if a projector next to the model is used
    preset: Preset | None = None  # the preset that named the model

    @classmethod
    def of(cls, path: Name | None, file: str | None, draft: Name | None, initial_state: Name | None, lora: Any,
           hub: Hub | None, override_kv: Any = None, mmproj: Name | bool | None = None) -> Self:  # fmt: skip
        """Finds the files of the model (by default the built-in one) and of the draft model; downloads missing ones."""
        if mmproj is True:
            raise BadInput("mmproj is True; give the path of a projector, or False to use none")
        hub = hub or Hub()
        alone = replace(hub, projectors=False)
        source = hub if mmproj is None else alone
        found = _file_of(path, file, source)
        preset = read_preset(found) if is_preset(found) else None
        return cls(
            found if preset is None else base_of(preset, source),
            None if draft is None else _model("draft", draft, alone),
            validate.optional_path("initial_state", initial_state),
            lora if preset is None else with_adapters(preset, lora),
            hub,
            overrides_of(override_kv),
            mmproj=None if mmproj is None or mmproj is False else validate.path("mmproj", mmproj),
            finds_mmproj=mmproj is None and path is not None,
            preset=preset,
        )

    def projector(self, file: GGUFFile, model: Model, devices: int) -> "MediaProjector | None":
        """The projector of the model, if one is given or lies next to it, and the model runs on one device."""
        return projector_for(file, model, self.mmproj, finds=self.finds_mmproj, devices=devices)

    def adapters(self, model: GGUFFile) -> Adapters:
        """Reads the LoRA adapters for this model."""
        return adapters_of(self.lora, model, lambda name: _adapter(name, self.hub))

    def first_state(self, model: Model, architecture: str) -> StateArrays | None:
        """The tuned state that texts begin with, if any."""
        return None if self.initial_state is None else read_initial_state(self.initial_state, model, architecture)


def projector_for(
    file: GGUFFile, model: Model, mmproj: Path | None, *, finds: bool, devices: int
) -> "MediaProjector | None":
    """The given projector of a model or, with `finds`, the one next to the model; none on several devices."""
    if devices > 1:
        if mmproj is not None:
            raise BadInput(
                "a model on several devices takes no images and no audio; name one device, or leave mmproj out"
            )
        return None
    if mmproj is None and not (finds and projectors_next_to(file.path)):
        return None
    from ..vision.media_encoders import check_projector, find_projector  # most models have no projector
    from ..vision.media_projector import read_projector

    if mmproj is None:
        return find_projector(file, model)
    projector = read_projector(mmproj)
    check_projector(projector, file, model)
    return projector


@dataclass(frozen=True)
class DeviceOptions:
    """The devices of a model, and how its steps are built on them."""

    names: Sequence[str] = ("auto",)  # one device, or several that run the model together
    split: Split = None  # shares of the layers by device; None decides by memory and speed
    offload: Offload = ON_GPU  # the weights that stay in main memory
    matrix_units: MatrixUnits = "auto"
    tuned: Path | None = None  # folder in which `rwkv-gpu tune` stores results
    layers_per_submit: int | None = None  # 0 submits a whole step at once; None takes the tuned number
    portable: bool = False  # uses only what every device supports
    checked: bool = False  # the driver checks each index
    at_once: bool = True  # starts on plain kernels while a first trial of matrix units runs

    def __post_init__(self) -> None:
        check(layers_per_submit=self.layers_per_submit)
        if self.matrix_units not in CHOICES:
            raise BadInput(f"matrix_units is {self.matrix_units!r}; it must be auto, on or off")

    def open(self, adapter: Adapter) -> Device:
        """Opens one of the devices."""
        from ..ops.open_device import open_device  # imports all kernels, which a model in numpy does not need

        return open_device(
            adapter, self.matrix_units, self.tuned,
            portable=self.portable, checked=self.checked, at_once=self.at_once,
        )  # fmt: skip


@dataclass(frozen=True)
class StoreOptions:
    """The external store of chat states, and the key and tenant that separate them."""

    store: Name | Store | None = None
    key: bytes | None = None
    tenant: str = ""
    digests: Path | None = None  # folder with digests of model files

    def open(self, model: ModelFile, layout: str, compact: Compact | None) -> StoredStates | None:
        """Opens the store for a model with this state layout; None if states are not stored."""
        return None if self.store is None else stored_states(self.store, self.key, self.tenant, model, layout, compact)


@dataclass(frozen=True)
class RoomOptions:
    """Options for the memory of sequences and the rows of a step."""

    chunk_size: int | None = None  # maximum rows of a step; None takes the tuned number, or the device's default
    sequences: int = DEFAULT_SEQUENCES  # maximum running requests
    context: int | None = None  # tokens of a sequence
    kv: KVType = "f16"  # number format of keys and values
    tokens: int | None = None  # tokens of all sequences together
    cache_bytes: int | None = None  # for ended sequences
    checkpoint_interval: int = DEFAULT_CHECKPOINT_INTERVAL  # tokens between two stored states
    look_ahead: int | None = None  # steps submitted before the tokens of the first are known
    states: StateType = "f32"  # number format of recurrent states

    def __post_init__(self) -> None:
        names = "chunk_size", "sequences", "context", "tokens", "cache_bytes", "checkpoint_interval", "look_ahead"
        check(**{name: getattr(self, name) for name in names})

    def cache(self, model: Model, drafts: int, *, initial: bool) -> tuple[int | None, CacheOptions]:
        """Rows of a step, if known, and the cache options of a runner for this model."""
        chunk, context, tokens = room_of(model, self.sequences, self.chunk_size, self.context, self.tokens)
        return chunk, {
            "slots": self.sequences, "context": context, "kv": self.kv, "states": self.states, "tokens": tokens,
            "cache_bytes": self.cache_bytes, "checkpoint_interval": self.checkpoint_interval,
            "look_ahead": DEFAULT_LOOK_AHEAD if self.look_ahead is None else self.look_ahead,
            "drafts": drafts, "initial": int(initial),
        }  # fmt: skip


def room_of(
    model: Model, sequences: int, chunk: int | None, context: int | None, tokens: int | None = None
) -> tuple[int | None, int | None, int | None]:
    """Returns the rows of a step, and the tokens of a sequence and of all sequences.

    Encoders and diffusion models get steps that hold whole texts; other models, if needed, whole prompts. With the
    default chunk size, such a step holds several texts: a single text of 512 tokens would leave a GPU partly idle.
    """
    if not reads_whole_texts(model):
        return chunk, context, tokens
    longest = context or min(model.context or ENCODER_CONTEXT, max(chunk or 0, ENCODER_CONTEXT))
    rows = max(ENCODER_CONTEXT if chunk in (None, DEFAULT_CHUNK) else chunk, longest)
    if reads_prompts_whole(model):
        return rows, longest, tokens
    return rows, longest, tokens or rows + PAGE * sequences  # each text may end at the start of a page


def offload_of(gpu_layers: int | None, cpu_moe: bool, n_cpu_moe: int, gpu_memory: int | str | None) -> Offload:
    """Converts options of `load` to an Offload."""
    check(gpu_layers=gpu_layers, n_cpu_moe=n_cpu_moe)
    return Offload.of(gpu_layers, bool(validate.truth("cpu_moe", cpu_moe)), n_cpu_moe, gpu_memory)


def own_options(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All options by our names, with defaults for those that are not given."""
    own = dict(defaults)
    for name, value in sorted(given.items(), key=lambda option: option[0] in ALIASES):
        ours = ALIASES.get(name, name)
        if name in WITHOUT_EFFECT:
            validate.plain(name, value)
            continue
        if ours not in defaults:
            known = (*defaults, *ALIASES)
            raise BadInput(validate.unknown_name(name, "option of load", known, "help(rwkv_gpu.load)", INSTEAD))
        if own[ours] is not defaults[ours]:
            raise BadInput(f"{ours} is given twice, also as {name}; give it once")
        own[ours] = None if name == "n_ctx" and value == 0 else value
    return own


def check(**asked: Any) -> None:
    """Refuses whole numbers that are out of range."""
    for name, value in asked.items():
        validate.number(name, value, RANGES[name])


def _file_of(path: Name | None, file: str | None, hub: Hub) -> Path:
    """Local path of the model's file."""
    if file is not None and not (isinstance(path, str) and isinstance(file, str)):
        raise BadInput(f"file is {file!r}; it must name a file of a repository on the hub, and path that repository")
    if isinstance(path, str) and file is not None:
        return hub.find(path, file)
    return builtin_model() if path is None else _model("path", path, hub)


def base_of(preset: Preset, hub: Hub) -> Path:
    """The file of a preset's model; downloads it if missing."""
    found = _model("path", preset.base, hub)
    if is_preset(found):
        raise BadFile(f"{preset.base} is a preset, and a preset cannot be made of another preset")
    return found


def with_adapters(preset: Preset, lora: Any) -> Any:
    """The adapters of a preset and those that are given."""
    if not preset.adapters:
        return lora
    return [*preset.adapters, *([lora] if isinstance(lora, str | Path) else lora or ())]


def _model(option: str, path: Name, hub: Hub) -> Path:
    """The file at a path, or of the model with that name; downloads it if missing."""
    if path == BUILTIN:
        return builtin_model()
    if not isinstance(path, str) or not path or "\0" in path:
        return validate.path(option, path)
    found = hub.locate(path)
    if found is None and not is_path(path):
        raise hub.unknown(path)
    return hub.pull(found) if isinstance(found, str) else validate.path(option, path if found is None else found)


def _adapter(path: Name, hub: Hub) -> Path:
    """The file at a path, or of an adapter's name on the hub."""
    return hub.find(path) if isinstance(path, str) and is_hub_name(path) else validate.path("lora", path)
