"""rwkv-gpu: GGUF language models, RNNs and transformers, on any GPU from plain Python."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    BadFile,
    BadGrammar,
    BadInput,
    BadNumbers,
    BadTemplate,
    CacheFull,
    Closed,
    ContextFull,
    DeviceError,
    DeviceLost,
    FileInUse,
    Forked,
    MissingExtra,
    NoAdapter,
    NoMatrixUnits,
    OutOfMemory,
    QueueFull,
    RwkvGpuError,
    ShaderError,
    UnsupportedDevice,
    UnsupportedModel,
)

if TYPE_CHECKING:
    from .builtin import builtin_model
    from .engine.sampling_params import SamplingParams
    from .llm.chat import Chat
    from .llm.completion import Completion, Event, Settings, Stats
    from .llm.generation import AsyncGeneration, Generation
    from .llm.hub import Hub
    from .llm.info import Info
    from .llm.model import LLM, load

__version__ = "0.2.0"

__all__ = [
    "LLM",
    "AsyncGeneration",
    "BadFile",
    "BadGrammar",
    "BadInput",
    "BadNumbers",
    "BadTemplate",
    "CacheFull",
    "Chat",
    "Closed",
    "Completion",
    "ContextFull",
    "DeviceError",
    "DeviceLost",
    "Event",
    "FileInUse",
    "Forked",
    "Generation",
    "Hub",
    "Info",
    "MissingExtra",
    "NoAdapter",
    "NoMatrixUnits",
    "OutOfMemory",
    "QueueFull",
    "RwkvGpuError",
    "SamplingParams",
    "Settings",
    "ShaderError",
    "Stats",
    "UnsupportedDevice",
    "UnsupportedModel",
    "__version__",
    "builtin_model",
    "load",
]

# Modules of public names, each imported at its first use
_PLACES = {
    "SamplingParams": "engine.sampling_params",
    "builtin_model": "builtin",
    "Chat": "llm.chat",
    "Hub": "llm.hub",
    "Info": "llm.info",
    **dict.fromkeys(("LLM", "load"), "llm.model"),
    **dict.fromkeys(("AsyncGeneration", "Generation"), "llm.generation"),
    **dict.fromkeys(("Completion", "Event", "Settings", "Stats"), "llm.completion"),
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use, so that `import rwkv_gpu` does not load a GPU library."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_PLACES[name]}", __name__), name)
    globals()[name] = value
    return value
