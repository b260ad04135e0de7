"""Qwen2: as Llama, with biases on q, k and v. Rotary positions turn dims of the two halves of a head (neox)."""

from ..gguf.file import GGUFFile
from .dense import Form, load_dense
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    return load_dense(file, "qwen2", Form(pairing="neox"))
