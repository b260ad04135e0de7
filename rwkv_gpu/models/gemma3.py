"""Gemma 3: norms before and after each branch, a GELU-gated feed-forward, and five window layers to each full one.

Window layers have a rotation of their own, which is not scaled for long contexts. The weights of norms hold 1 + w.
"""

import math

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form, build
from .rope import unscaled
from .transformer import Transformer

PERIOD, LARGEST = 6, 62  # layers from one full layer to the next; layers of the 27B model
NEAR_BASE = 10000.0  # of window layers


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "gemma3")
    hyper, windows = source.hyper, source.windows(PERIOD)
    full = source.rope("neox")
    near = unscaled(source.near(full, NEAR_BASE))
    return build(
        source,
        Form(
            ropes=[near if window else full for window in windows],
            windows=windows,
            activation="gelu",
            head_norms="each",
            after=("post_attention_norm", "post_ffw_norm"),
            score_scale=(hyper.width / hyper.heads[0]) ** -0.5 if hyper.layers == LARGEST else None,
            embedding_scale=math.sqrt(hyper.width),
            logit_cap=source.cap("final_logit_softcapping", default=0.0),
        ),
    )
