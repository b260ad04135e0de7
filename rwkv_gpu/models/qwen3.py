"""Qwen3: as Qwen2 without biases, with an RMS norm of each head of q and k before the rotation."""

from ..gguf.file import GGUFFile
from .dense import Form, load_dense
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    return load_dense(file, "qwen3", Form(pairing="neox", head_norms="each"))
