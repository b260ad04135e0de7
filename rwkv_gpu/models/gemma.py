"""Gemma: Llama with a scaled embedding and a GELU-gated feed-forward. The weights of norms hold 1 + w."""

import math

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form, build
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "gemma")
    return build(source, Form(pairing="neox", activation="gelu", embedding_scale=math.sqrt(source.hyper.width)))
