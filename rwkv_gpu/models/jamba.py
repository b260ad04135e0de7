"""Jamba: Mamba whose dt, B and C are normed, attention without positions in some layers, experts in some.

Shares of experts are not normalised.
"""

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention
from .experts import read_experts, take_mixture
from .hybrid import (
    Block,
    Experts,
    Hybrid,
    head_size,
    read_kv_heads,
    read_sizes,
    take_attention,
    take_feed,
    take_model,
    take_norm,
)
from .mamba import read_inner, take_mixer, take_scan_norms
from .tensors import Tensors

ARCH = "jamba"


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes, inner = read_sizes(file, ARCH, tensors), read_inner(file, ARCH)
    heads = file.int(f"{ARCH}.attention.head_count", low=1, high=1 << 12)
    kv_heads = read_kv_heads(file, sizes, [heads] * sizes.layers)
    size = head_size(file, ARCH, sizes.width, heads)
    how = Attention(heads, None, scale=size**-0.5)
    feed = file.int(f"{ARCH}.feed_forward_length", low=1, high=1 << 20)

    def mixer(i: int) -> Block:
        if kv_heads[i]:
            return take_attention(tensors, sizes, i, take_norm(tensors, sizes, i), kv_heads[i], how, size)
        return take_mixer(tensors, sizes, inner, i, take_scan_norms(tensors, inner, i))

    def second(i: int) -> Block:
        norm = f"blk.{i}.ffn_norm.weight"
        if f"blk.{i}.ffn_gate_inp.weight" not in tensors:
            return take_feed(tensors, sizes, i, feed, norm)
        experts = read_experts(file, ARCH, sizes.width, normalise=False)
        return Experts(tensors.take(norm, sizes.width), take_mixture(tensors, experts, i))

    return take_model(tensors, sizes, [(mixer(i), second(i)) for i in range(sizes.layers)])
