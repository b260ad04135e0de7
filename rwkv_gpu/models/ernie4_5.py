"""ERNIE 4.5, the dense ones: Llama's layers under another name."""

from ..gguf.file import GGUFFile
from .dense import Form, load_dense
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    return load_dense(file, "ernie4_5", Form())
