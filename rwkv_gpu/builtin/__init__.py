"""The demo model that ships with the package: a very small RWKV-7 for small talk. See docs/models/builtin.md."""

from pathlib import Path


def builtin_model() -> Path:
    """Path of the built-in GGUF file."""
    return Path(__file__).with_name("builtin.gguf")
