"""rwkv-gpu: GGUF language models, RNNs and transformers, on any GPU from plain Python."""

from .engine.sampling_params import SamplingParams
from .errors import (
    BadFile,
    BadInput,
    BadNumbers,
    BadTemplate,
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
from .llm import LLM, Completion, Event, Generation, Stats, load

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "BadFile",
    "BadInput",
    "BadNumbers",
    "BadTemplate",
    "CacheFull",
    "Completion",
    "ContextFull",
    "DeviceError",
    "DeviceLost",
    "Event",
    "Generation",
    "NoAdapter",
    "OutOfMemory",
    "RwkvGpuError",
    "SamplingParams",
    "ShaderError",
    "Stats",
    "UnsupportedDevice",
    "UnsupportedModel",
    "__version__",
    "load",
]
