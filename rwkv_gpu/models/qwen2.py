"""Qwen2: as Llama, with biases on q, k and v. Rotary positions turn dims of the two halves of a head (neox)."""

from ..gguf.file import GGUFFile
from .transformer import Transformer, load_dense


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    return load_dense(file, "qwen2", "neox", biases=True)
