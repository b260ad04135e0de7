"""Seed-OSS: Llama with biases on q, k and v, and halves of heads that turn."""

from ..gguf.file import GGUFFile
from .dense import Form, load_dense
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    return load_dense(file, "seed_oss", Form(pairing="neox", norms=("attn_norm", "post_attention_norm")))
