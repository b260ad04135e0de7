"""Llama, and models stored as Llama (TinyLlama, Mistral, SmolLM): RMS norms, rotary attention, a gated feed-forward.

Positions turn neighbouring dims (2i, 2i + 1); Llama 3 divides their frequencies by factors of its own.
"""

from ..gguf.file import GGUFFile
from .dense import Form, load_dense
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    return load_dense(file, "llama", Form())
