"""Muse Glimmer: gated attention, and only window layers turn. Embeddings are normed, and logits scaled and capped."""

from ..gguf.file import GGUFFile
from .dense import SCALE, DenseFile, Form, build
from .rope import unscaled
from .transformer import Transformer

PERIOD = 4
LOGIT_CAP = 30.0  # of files that do not say it
AFTER_EPS = 1e-8  # of the norms after branches, whatever the file says of the others


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "muse-glimmer")
    windows = source.windows(PERIOD)
    near = unscaled(source.near(source.rope("normal")))
    return build(
        source,
        Form(
            ropes=[near if window else None for window in windows],
            windows=windows,
            head_norms="each",
            gated=True,
            after=("post_attention_norm", "post_ffw_norm"),
            after_eps=AFTER_EPS,
            embedding_norm="unit",
            logit_scale=source.number("logit_scale", *SCALE, default=1.0),
            logit_cap=source.cap("final_logit_softcapping", default=LOGIT_CAP),
        ),
    )
