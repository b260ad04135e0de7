"""Jamba: Mamba with norms of dt, B and C; attention without positions in some layers, experts in some.

Shares of experts are not normalised.
"""

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention
from .hybrid import Block, Hybrid, HybridFile
from .mamba import read_inner, take_mixer, take_scan_norms


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    tensors, layers = source.tensors, range(source.sizes.layers)
    inner, heads = read_inner(source), source.heads
    kv_heads, size = source.kv_heads([heads] * len(layers)), source.head_size(heads)
    how = Attention(heads, None, scale=size**-0.5)

    def mixer(i: int) -> Block:
        if kv_heads[i]:
            return source.attention(i, source.norm(i), kv_heads[i], how, size)
        return take_mixer(source, inner, i, take_scan_norms(tensors, inner, i))

    def second(i: int) -> Block:
        if f"blk.{i}.ffn_gate_inp.weight" not in tensors:
            return source.feed(i, source.inner)
        return source.experts(i, source.read_experts(normalise=False))

    return source.model([(mixer(i), second(i)) for i in layers])
