"""Granite: Llama with scales of embedding, scores, branches and logits."""

from dataclasses import replace

from ..gguf.file import GGUFFile
from .dense import SCALE, DenseFile, Form, build
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "granite")
    turns = file.bool("granite.rope.scaling.finetuned", default=True)  # the key is used for whether positions turn
    return build(source, replace(granite_form(source), ropes=() if turns else [None] * source.hyper.layers))


def granite_form(source: DenseFile) -> Form:
    """What sets Granite apart, dense or with experts."""
    return Form(
        score_scale=source.number("attention.scale", *SCALE, default=0.0) or None,
        embedding_scale=source.number("embedding_scale", *SCALE, default=1.0),
        branch_scale=source.number("residual_scale", *SCALE, default=1.0),
        logit_scale=1 / source.number("logit_scale", *SCALE, default=1.0),
    )
