"""Nemotron-H: each layer is a Mamba-2 mixer, attention without positions, or a feed-forward of squared ReLU.

In Nemotron 3, the feed-forwards are experts, also with squared ReLU and without a gate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Ops, Rms, Tensor, Weight
from .experts import take_mixture
from .hybrid import Block, Experts, Hybrid, HybridFile, by_layer
from .mamba2 import read_inner, take_mixer
from .tensors import EPS

HEAD_COUNTS = "head_count", "head_count_kv"


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
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    tensors, inner = source.tensors, read_inner(source)
    all_heads, feeds = source.by_layer("attention.head_count"), source.by_layer("feed_forward_length", 1 << 20)
    all_kv_heads, size = source.kv_heads(all_heads, 1 << 12), source.head_size(max(1, *all_heads))

    def block(i: int) -> Block:
        norm = source.norm(i)
        if all_kv_heads[i]:
            return source.attention(i, norm, all_kv_heads[i], Attention(all_heads[i], None, scale=size**-0.5), size)
        if not feeds[i]:
            return take_mixer(source, inner, i, norm)
        if f"blk.{i}.ffn_gate_inp.weight" not in tensors:
            return _take_feed(source, i, norm, feeds[i])
        return _take_experts(source, i, norm)

    def of_head(head: HybridFile, i: int) -> Sequence[Block]:
        """The attention and experts of a draft head; elsewhere, each of these is a separate layer."""
        heads, kv_heads = (
            by_layer(file, f"{source.arch}.attention.{key}", i + 1, 0, 1 << 12)[i] for key in HEAD_COUNTS
        )
        if not heads or not kv_heads:
            raise tensors.bad(f"layer {i}", f"{heads} heads and {kv_heads} KV heads", "attention in a draft head")
        attention = head.attention(i, head.norm(i), kv_heads, Attention(heads, None, scale=size**-0.5), size)
        norm = head.tensors.take(f"blk.{i}.post_attention_norm.weight", head.sizes.width)
        return attention, _take_experts(head, i, norm)

    return source.model(
        [(block(i),) for i in range(source.sizes.layers)],
        head_layer=of_head,
        head_norm_eps=file.float(f"{source.arch}.attention.layer_norm_epsilon", *EPS, default=source.sizes.eps),
    )


def _take_experts(source: HybridFile, i: int, norm: Weight) -> Experts:
    experts, shared = source.read_experts(scores="sigmoid"), f"blk.{i}.ffn_up_shexp.weight" in source.tensors
    return Experts(norm, take_mixture(source.tensors, experts, i, then="relu2", gated=False, shared=shared))


def _take_feed(source: HybridFile, i: int, norm: Weight, inner: int) -> SquaredReluFeed:
    at, width, tensors = f"blk.{i}.ffn", source.sizes.width, source.tensors
    return SquaredReluFeed(
        norm,
        up=tensors.take(f"{at}_up.weight", inner, width),
        down=tensors.take(f"{at}_down.weight", width, inner),
        up_bias=tensors.find(f"{at}_up.bias", inner),
        down_bias=tensors.find(f"{at}_down.bias", width),
    )
