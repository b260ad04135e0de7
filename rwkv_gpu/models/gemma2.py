"""Gemma 2: as Gemma 3 without head norms; every other layer has a window, and scores and logits are capped."""

import math

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form, build
from .transformer import Transformer

WINDOW = 4096  # of files that do not say it
PERIOD, LARGEST = 2, 46  # layers from one full layer to the next; layers of the 27B model


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "gemma2", window=WINDOW)
    hyper = source.hyper
    return build(
        source,
        Form(
            pairing="neox",
            windows=source.windows(PERIOD),
            activation="gelu",
            after=("post_attention_norm", "post_ffw_norm"),
            score_scale=(hyper.width / hyper.heads[0]) ** -0.5 if hyper.layers == LARGEST else None,
            score_cap=source.cap("attn_logit_softcapping", default=50.0),
            embedding_scale=math.sqrt(hyper.width),
            logit_cap=source.cap("final_logit_softcapping", default=30.0),
        ),
    )
