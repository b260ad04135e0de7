"""gpt-oss: attention with sinks, windows in every other layer, and experts with biases and a clamped SwiGLU."""

from ..gguf.file import GGUFFile
from ..ops.vocabulary import ClampedSwiglu
from .dense import DenseFile, Form
from .mixtures import ExpertForm, MixtureTransformer, build_mixtures

ARCH = "gpt-oss"
SWIGLU = ClampedSwiglu(7.0, alpha=1.702, shift=1.0)


def load(file: GGUFFile) -> MixtureTransformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, ARCH)
    form = Form(
        pairing="neox",
        windows=source.windows(2),
        norms=("attn_norm", "post_attention_norm"),
        sinks="all",
    )
    experts = ExpertForm(scores="late_softmax", normalise=False, then=SWIGLU, biases=True)
    return build_mixtures(source, form, experts)
