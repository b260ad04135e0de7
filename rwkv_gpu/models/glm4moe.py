"""GLM-4.5, GLM-4.5-Air and their like: experts after leading dense layers, with a shared one; half of a head turns."""

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form
from .mixtures import ExpertForm, MixtureTransformer, build_mixtures

ARCH = "glm4moe"


def load(file: GGUFFile) -> MixtureTransformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, ARCH)
    form = Form(
        pairing="neox",
        head_norms="each" if "blk.0.attn_q_norm.weight" in source.tensors else "none",  # the largest has them
        norms=("attn_norm", "post_attention_norm"),
    )
    return build_mixtures(source, form, ExpertForm(scores="sigmoid", shared=True))
