"""SmolLM3: Llama without positions in every fourth layer."""

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form, build
from .transformer import Transformer

PERIOD = 4


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "smollm3")
    rope = source.rope("normal")
    return build(source, Form([None if i % PERIOD == PERIOD - 1 else rope for i in range(source.hyper.layers)]))
