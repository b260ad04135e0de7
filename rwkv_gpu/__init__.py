"""rwkv-gpu: GGUF language models, RNNs and transformers, on any GPU from plain Python."""

from .errors import (
    BadFile,
    BadInput,
    DeviceError,
    DeviceLost,
    NoAdapter,
    OutOfMemory,
    RwkvGpuError,
    ShaderError,
    UnsupportedDevice,
    UnsupportedModel,
)

__version__ = "0.1.0"

__all__ = [
    "BadFile",
    "BadInput",
    "DeviceError",
    "DeviceLost",
    "NoAdapter",
    "OutOfMemory",
    "RwkvGpuError",
    "ShaderError",
    "UnsupportedDevice",
    "UnsupportedModel",
    "__version__",
]
