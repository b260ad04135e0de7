"""Nemotron-H: each layer is one thing: a Mamba-2 mixer, attention without positions, or a feed-forward of squared ReLU.

In Nemotron 3 the feed-forwards are experts, as simple as these.
"""

from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Ops, Rms, Tensor, Weight
from .experts import take_mixture
from .hybrid import Block, Experts, Hybrid, HybridFile
from .mamba2 import read_inner, take_mixer


@dataclass(frozen=True)
class SquaredReluFeed:
    """add + W_down · relu(W_up norm(x))², each with the bias that the file has"""

    norm: Weight  # [D]
    up: Weight  # [inner, D]
    down: Weight  # [D, inner]
    up_bias: Weight | None  # [inner]
    down_bias: Weight | None  # [D]
    states = ()
    caches = ()

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        inner = g.linear(x, self.up, then="relu2", bias=self.up_bias, norm=Rms(self.norm, eps))
        return g.linear(inner, self.down, bias=self.down_bias, add=add)


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = HybridFile(file)
    tensors, inner = source.tensors, read_inner(source)
    heads, feeds = source.by_layer("attention.head_count"), source.by_layer("feed_forward_length", 1 << 20)
    kv_heads, size = source.kv_heads(heads, 1 << 12), source.head_size(max(1, *heads))

    def block(i: int) -> Block:
        norm = source.norm(i)
        if kv_heads[i]:
            return source.attention(i, norm, kv_heads[i], Attention(heads[i], None, scale=size**-0.5), size)
        if not feeds[i]:
            return take_mixer(source, inner, i, norm)
        if f"blk.{i}.ffn_gate_inp.weight" not in tensors:
            return _take_feed(source, i, norm, feeds[i])
        experts, shared = source.read_experts(scores="sigmoid"), f"blk.{i}.ffn_up_shexp.weight" in tensors
        return Experts(norm, take_mixture(tensors, experts, i, then="relu2", gated=False, shared=shared))

    return source.model([(block(i),) for i in range(source.sizes.layers)])


def _take_feed(source: HybridFile, i: int, norm: Weight, inner: int) -> SquaredReluFeed:
    at, width, tensors = f"blk.{i}.ffn", source.sizes.width, source.tensors
    return SquaredReluFeed(
        norm,
        up=tensors.take(f"{at}_up.weight", inner, width),
        down=tensors.take(f"{at}_down.weight", width, inner),
        up_bias=tensors.find(f"{at}_up.bias", inner),
        down_bias=tensors.find(f"{at}_down.bias", width),
    )
