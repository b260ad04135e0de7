"""Llama 4: layers with RoPE attend within chunks of positions; every fourth layer has full attention without RoPE.

Full layers scale queries by position. The input of an expert is multiplied by its share. Scout norms the heads of
layers with RoPE, Maverick does not. MobileLLM-R1, whose files state a window of 0, has no experts; all its layers have
RoPE and full attention.
"""

from dataclasses import replace

from ..gguf.file import GGUFFile
from ..ops.vocabulary import HeadNorms, Temperature
from .dense import DenseFile, Form
from .mixtures import ExpertForm, MixtureTransformer, build_either
from .transformer import SelfAttention, Transformer

ARCH = "llama4"
CHUNK = 8192  # positions
PERIOD = 4  # layers from one with full attention to the next
NOT_NORMED = 128  # experts of Maverick
TEMPERATURE = Temperature(0.1, CHUNK, shift=1)


def load(file: GGUFFile) -> MixtureTransformer | Transformer:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    chunked = file.int(f"{ARCH}.attention.sliding_window", low=0, default=CHUNK) > 0
    source = DenseFile(file, ARCH)
    rope, normed = source.rope("normal"), file.int(f"{ARCH}.expert_count", default=0) != NOT_NORMED
    full = [chunked and i % PERIOD == PERIOD - 1 for i in range(source.hyper.layers)]
    near = source.near(rope)
    if normed:
        near = replace(near, magnitude=1.0)  # its heads are normed after rotation
    form = Form(ropes=[None if one else near for one in full], windows=[0] * len(full))

    def seeing(i: int, p: SelfAttention) -> SelfAttention:
        if full[i]:
            return replace(p, how=replace(p.how, temperature=TEMPERATURE))
        chunk, norms = CHUNK if chunked else 0, HeadNorms(source.hyper.eps) if normed else None
        return replace(p, how=replace(p.how, chunk=chunk, norms=norms), cache=replace(p.cache, window=chunk))

    experts = ExpertForm(optional=True, scores="sigmoid", normalise=False, shared=True, scales_input=True)
    return build_either(source, form, experts, seeing)
