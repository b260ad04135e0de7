"""rwkv-gpu: GGUF language models, RNNs and transformers, on any GPU from plain Python."""

from .errors import (
    BadFile,
    BadInput,
    CacheFull,
    ContextFull,
    DeviceError,
    DeviceLost,
    NoAdapter,
    OutOfMemory,
    RwkvGpuError,
    ShaderError,
    UnsupportedDevice,
    UnsupportedModel,
)
from .llm import LLM, Completion, Stats, load

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "BadFile",
    "BadInput",
    "CacheFull",
    "Completion",
    "ContextFull",
    "DeviceError",
    "DeviceLost",
    "NoAdapter",
    "OutOfMemory",
    "RwkvGpuError",
    "ShaderError",
    "Stats",
    "UnsupportedDevice",
    "UnsupportedModel",
    "__version__",
    "load",
]
