"""Hunyuan, dense: Llama with halves of heads that turn, and norms of heads after they turned."""

from ..gguf.file import GGUFFile
from .dense import Form, load_dense
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    return load_dense(file, "hunyuan-dense", Form(pairing="neox", head_norms="turned"))
