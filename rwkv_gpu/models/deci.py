"""Llama-Nemotron (Super 49B, Ultra 253B, 51B) and DeciLM: Llama whose layers were thinned out one by one.

A layer may have any number of key heads and any width of its feed-forward. It may lack one of both branches, or all,
and in place of attention it may have one matrix.
"""

from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Ops, Rms, Tensor, Weight
from .hybrid import (
    Block,
    Hybrid,
    by_layer,
    head_size,
    read_kv_heads,
    read_sizes,
    take_attention,
    take_feed,
    take_model,
    take_norm,
)
from .rope import read_rope
from .tensors import Tensors

ARCH = "deci"


@dataclass(frozen=True)
class Linear:
    """add + W norm(x)"""

    norm: Weight  # [D]
    weight: Weight  # [D, D]
    states = ()
    caches = ()

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        return g.linear(x, self.weight, norm=Rms(self.norm, eps), add=add)


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes = read_sizes(file, ARCH, tensors)
    heads = by_layer(file, f"{ARCH}.attention.head_count", sizes.layers, 0, 1 << 12)
    kv_heads = read_kv_heads(file, sizes, heads, 1 << 12)
    feeds = by_layer(file, f"{ARCH}.feed_forward_length", sizes.layers, 0, 1 << 20)
    size = head_size(file, ARCH, sizes.width, max(1, *heads))
    rope = read_rope(file, ARCH, tensors, "normal", size, sizes.context)

    def branches(i: int) -> tuple[Block, ...]:
        found: list[Block] = []
        if heads[i]:
            norm = take_norm(tensors, sizes, i)
            if kv_heads[i]:
                how = Attention(heads[i], rope, scale=size**-0.5)
                found.append(take_attention(tensors, sizes, i, norm, kv_heads[i], how, size))
            else:
                matrix = tensors.take(f"blk.{i}.attn_output.weight", sizes.width, sizes.width)
                found.append(Linear(norm, matrix))
        if feeds[i]:
            found.append(take_feed(tensors, sizes, i, feeds[i], f"blk.{i}.ffn_norm.weight"))
        return tuple(found)

    return take_model(tensors, sizes, [branches(i) for i in range(sizes.layers)])
