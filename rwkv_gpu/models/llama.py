"""Llama, and models stored as Llama (TinyLlama, Mistral, SmolLM, Mixtral): RMS norms, rotary attention, a gated
feed-forward or a mixture of experts.

Positions turn neighbouring dims (2i, 2i + 1); Llama 3 divides their frequencies by factors of its own.
"""

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form, build
from .mixtures import ExpertForm, MixtureTransformer, build_mixtures
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer | MixtureTransformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "llama")
    if file.int("llama.expert_count", default=0):
        return build_mixtures(source, Form(), ExpertForm(normalise=True))
    return build(source, Form())
