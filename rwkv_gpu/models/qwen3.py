"""Qwen3: as Qwen2 without biases, with an RMS norm of each head of q and k before the rotation."""

from ..gguf.file import GGUFFile
from .transformer import Transformer, load_dense


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    return load_dense(file, "qwen3", "neox", norms=True)
