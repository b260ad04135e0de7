"""A loaded model: text in, text out. Every method may be called from any thread; calls join the running batch."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

from ..engine.cache.config import DEFAULT_CHECKPOINT_INTERVAL, DEFAULT_SEQUENCES
from ..errors import BadInput
from ..gguf.override import Override
from ..gpu.loader import Progress
from ..gpu.matrix_units import MatrixUnits
from ..ops.kv_format import KVType
from ..ops.vocabulary import StateType
from ..stores import Store
from .chat_methods import ChatMethods
from .driver import MAX_REQUESTS
from .generate_methods import GenerateMethods
from .hub import Hub
from .load_options import own_options
from .loading import parts_of
from .measure_methods import MeasureMethods
from .openai_methods import OpenAIMethods


class LLM(ChatMethods, GenerateMethods, MeasureMethods, OpenAIMethods):
    """A loaded model. Use it in `with` or `async with`, or call `close` to free its memory."""

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Opens a model with the options of `load`."""
        super().__init__(*parts_of(own_options(OPTIONS, {"path": path, **options})))

    def __reduce__(self) -> NoReturn:
        raise BadInput("a model cannot be sent to another process or copied; load it in each process that uses it")


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    device: str | int | Sequence[str | int] = "auto",
    split: str | Sequence[float] | None = None,
    chunk_size: int | Literal["auto"] = "auto",
    sequences: int = DEFAULT_SEQUENCES,
    context: int | None = None,
    kv: KVType = "f16",
    states: StateType = "f32",
    tokens: int | None = None,
    cache_bytes: int | None = None,
    checkpoint_interval: int = DEFAULT_CHECKPOINT_INTERVAL,
    max_requests: int = MAX_REQUESTS,
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
    no_draft: bool = False,
    context_shift: int | None = None,
    lora: Any = None,
    initial_state: str | os.PathLike[str] | None = None,
    override_kv: Mapping[str, Override] | Sequence[str] | None = None,
    rope_scaling: str | None = None,
    rope_scale: float | None = None,
    yarn_orig_ctx: int | None = None,
    mmproj: str | os.PathLike[str] | bool | None = None,
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

    `path` may be a short name such as `qwen3.5:4b`, `builtin`, or a repository on the Hugging Face hub:
    `hf.co/OWNER/NAME:Q4_K_M`, or `OWNER/NAME`, also with `file`.
    `device` is auto, cpu, an index, a part of a name, or several of these. docs/library.md explains every option.
    """
    given = locals()
    return LLM(**given.pop("others"), **given)


OPTIONS = {name: one.default for name, one in inspect.signature(load).parameters.items() if name != "others"}
