"""Phi-3, Phi-4 and Phi-4-mini: q, k and v are one matrix, and so are gate and up.

Models of long contexts divide frequencies by other factors where they are opened with more positions than their first
training had. The window in the metadata of the first models is not used, as llama.cpp does not use it either.
"""

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form, build
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "phi3")
    return build(source, Form(pairing="neox", windows=[0] * source.hyper.layers))
