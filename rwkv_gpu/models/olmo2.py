"""OLMo 2 and OLMo 3: branches are normed after their matrices, not before; q and k over all their heads at once.

OLMo 3 has window layers, whose positions are not scaled.
"""

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form, build
from .rope import unscaled
from .transformer import Transformer

PERIOD = 4


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "olmo2")
    windows = source.windows(PERIOD)
    full = source.rope("neox")
    near = unscaled(full)
    return build(
        source,
        Form(
            ropes=[near if window else full for window in windows],
            windows=windows,
            head_norms="whole",
            norms=(None, None),
            after=("post_attention_norm", "post_ffw_norm"),
        ),
    )
