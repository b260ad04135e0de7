"""Falcon-H1: in each layer, attention and a Mamba-2 mixer read the same x, and a gated feed-forward follows.

Its multipliers need no code: converters multiply them into the weights.
"""

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention
from .hybrid import Hybrid, HybridFile, Parallel
from .mamba2 import read_inner, take_mixer


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    tensors, inner, heads = source.tensors, read_inner(source), source.heads
    kv_heads, size = source.only_kv_heads(heads), source.head_size(heads)
    how = Attention(heads, source.rope("neox", size), scale=size**-0.5)
    layers = []
    for i in range(source.sizes.layers):
        before = source.norm(i)
        both = source.attention(i, before, kv_heads, how, size), take_mixer(source, inner, i, before)
        # Current converters write this name without the suffix; later ones may add it.
        norm = "ffn_norm" if f"blk.{i}.ffn_norm" in tensors else "ffn_norm.weight"
        layers.append((Parallel(both), source.feed(i, source.inner, norm)))
    return source.model(layers)
