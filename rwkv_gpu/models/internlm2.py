"""InternLM 2 and 3: Llama by another name."""

from ..gguf.file import GGUFFile
from .dense import Form, load_dense
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    return load_dense(file, "internlm2", Form())
