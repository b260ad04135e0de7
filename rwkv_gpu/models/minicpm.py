"""MiniCPM: Llama with scales of embedding, branches and logits. The first files have no keys for them."""

import math

from ..gguf.file import GGUFFile
from .dense import SCALE, DenseFile, Form, build
from .transformer import Transformer

EMBEDDING, DEPTH, BASE_WIDTH = 12.0, 1.4, 256  # of the first models: scales, and the width that logits are scaled by


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "minicpm")
    hyper = source.hyper
    form = Form(
        embedding_scale=source.scale("embedding_scale", EMBEDDING),
        branch_scale=source.number("residual_scale", *SCALE, default=DEPTH / math.sqrt(hyper.layers)),
        logit_scale=1 / source.number("logit_scale", *SCALE, default=hyper.width / BASE_WIDTH),
    )
    return build(source, form)
