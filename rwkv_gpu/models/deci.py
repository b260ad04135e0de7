"""Llama-Nemotron (Super 49B, Ultra 253B, 51B) and DeciLM: Llama whose layers were pruned individually.

Layers differ in the number of key heads and the width of the feed-forward. A layer may lack attention, feed-forward or
both, and may have a single matrix in place of attention.
"""

from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Ops, Rms, Tensor, Weight
from .hybrid import Block, Hybrid, HybridFile


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
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    sizes, heads = source.sizes, source.by_layer("attention.head_count")
    kv_heads, feeds = source.kv_heads(heads, 1 << 12), source.by_layer("feed_forward_length", 1 << 20)
    size = source.head_size(max(1, *heads))
    rope = source.rope("normal", size)

    def branches(i: int) -> tuple[Block, ...]:
        found: list[Block] = []
        if heads[i]:
            norm = source.norm(i)
            if kv_heads[i]:
                how = Attention(heads[i], rope, scale=size**-0.5)
                found.append(source.attention(i, norm, kv_heads[i], how, size))
            else:
                found.append(Linear(norm, source.tensors.take(f"blk.{i}.attn_output.weight", sizes.width, sizes.width)))
        if feeds[i]:
            found.append(source.feed(i, feeds[i]))
        return tuple(found)

    return source.model([branches(i) for i in range(sizes.layers)])
