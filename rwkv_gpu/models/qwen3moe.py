"""Qwen3-MoE: as Qwen3, but each feed-forward is a mixture of experts: a router chooses a few of them for each row."""

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form
from .mixtures import ExpertForm, MixtureTransformer, build_mixtures


def load(file: GGUFFile, arch: str = "qwen3moe") -> MixtureTransformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    form = Form(pairing="neox", head_norms="each")
    return build_mixtures(DenseFile(file, arch), form, ExpertForm(normalise=True))
