"""Ministral 3 and Devstral 2: Llama with YaRN; queries beyond the first positions have a larger scale.

Files of it may have experts, as those of Llama.
"""

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Temperature
from .dense import DenseFile, Form, build
from .mixtures import ExpertForm, MixtureTransformer, build_mixtures
from .tensors import LONGEST_CONTEXT
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer | MixtureTransformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, "mistral3")
    scale = source.number("attention.temperature_scale", 0.0, 1e2, default=0.0)
    key = "mistral3.rope.scaling.original_context_length"
    period = file.int(key, low=1, high=LONGEST_CONTEXT, default=source.hyper.context)
    form = Form(temperature=Temperature(scale, period) if scale else None)
    if file.int("mistral3.expert_count", default=0):
        return build_mixtures(source, form, ExpertForm(normalise=True))
    return build(source, form)
