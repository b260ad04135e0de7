"""LoRA adapters beside matrix products of few rows."""

from .kernel import CLOSE, Kernel
from .parts import LANES, NORM

ADAPTER_DOWN = Kernel("adapters/down", "adapter_down", (LANES, NORM), tolerance=CLOSE)
