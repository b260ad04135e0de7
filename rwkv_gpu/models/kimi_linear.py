"""Kimi Linear: three layers of KDA for each of latent attention. Nothing rotates."""

from ..gguf.file import GGUFFile
from .experts import read_experts
from .hybrid import (
    AttendsToLatents,
    Block,
    Hybrid,
    read_kv_heads,
    read_latent_sizes,
    read_sizes,
    take_model,
    take_second,
)
from .kda import take_kda
from .latent import LatentScores, take_latent_attention
from .tensors import Tensors

ARCH = "kimi-linear"


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes = read_sizes(file, ARCH, tensors)
    heads = file.int(f"{ARCH}.attention.head_count", low=1, high=1 << 12)
    kv_heads = read_kv_heads(file, sizes, [heads] * sizes.layers)
    latent = read_latent_sizes(file, tensors, sizes, heads)
    scores = LatentScores(None, (latent.nope + latent.rotary) ** -0.5)
    experts = read_experts(file, ARCH, sizes.width, scores="sigmoid", normalise=True)

    def first(i: int) -> Block:
        if kv_heads[i]:
            return AttendsToLatents(take_latent_attention(file, tensors, latent, scores, i))
        return take_kda(file, tensors, sizes, heads, i)

    return take_model(
        tensors, sizes, [(first(i), take_second(file, tensors, sizes, experts, i)) for i in range(sizes.layers)]
    )
