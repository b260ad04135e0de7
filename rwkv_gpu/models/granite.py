"""Granite: Llama with scales of embedding, scores, branches and logits. Files of it may have experts, too."""

from dataclasses import replace

from ..gguf.file import GGUFFile
from .dense import SCALE, DenseFile, Form, build
from .mixtures import ExpertForm, MixtureTransformer, build_mixtures
from .transformer import Transformer

EXPERTS = ExpertForm(normalise=True, shared=None)


def load(file: GGUFFile) -> Transformer | MixtureTransformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "granite")
    turns = file.bool("granite.rope.scaling.finetuned", default=True)  # the key is used for whether positions turn
    form = replace(granite_form(source), ropes=() if turns else [None] * source.hyper.layers)
    if file.int("granite.expert_count", default=0):
        return build_mixtures(source, form, EXPERTS)
    return build(source, form)


def granite_form(source: DenseFile) -> Form:
    """What sets Granite apart, dense or with experts."""
    return Form(
        score_scale=source.score_scale(),
        embedding_scale=source.scale("embedding_scale"),
        branch_scale=source.scale("residual_scale"),
        logit_scale=1 / source.number("logit_scale", *SCALE, default=1.0),
    )
