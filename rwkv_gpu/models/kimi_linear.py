"""Kimi Linear: three layers of KDA for each layer of latent attention. No layer has RoPE."""

from ..gguf.file import GGUFFile
from .hybrid import AttendsToLatents, Block, Hybrid, HybridFile
from .kda import take_kda
from .latent import LatentScores, take_latent_attention


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    layers, heads = range(source.sizes.layers), source.heads
    kv_heads, latent = source.kv_heads([heads] * len(layers)), source.latent_sizes(heads)
    scores = LatentScores(None, (latent.nope + latent.rotary) ** -0.5)
    experts = source.read_experts(scores="sigmoid", normalise=True)

    def first(i: int) -> Block:
        if kv_heads[i]:
            return AttendsToLatents(take_latent_attention(file, source.tensors, latent, scores, i))
        return take_kda(source, heads, i)

    return source.model([(first(i), source.second(i, experts)) for i in layers])
