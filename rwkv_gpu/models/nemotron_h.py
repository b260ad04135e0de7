"""Nemotron-H: each layer is one thing: a Mamba-2 mixer, attention without positions, or a feed-forward of squared ReLU.

In Nemotron 3 the feed-forwards are experts, as simple as these.
"""

from dataclasses import dataclass
from functools import partial

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Ops, Rms, Tensor, Weight
from .experts import read_experts, take_mixture
from .hybrid import (
    Block,
    Experts,
    Hybrid,
    Sizes,
    by_layer,
    head_size,
    read_kv_heads,
    read_sizes,
    take_attention,
    take_model,
    take_norm,
)
from .mamba2 import read_inner, take_mixer
from .tensors import Tensors


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


def load(file: GGUFFile, arch: str) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes, inner = read_sizes(file, arch, tensors), read_inner(file, arch, tensors)
    heads = by_layer(file, f"{arch}.attention.head_count", sizes.layers, 0, 1 << 12)
    kv_heads = read_kv_heads(file, sizes, heads, 1 << 12)
    feeds = by_layer(file, f"{arch}.feed_forward_length", sizes.layers, 0, 1 << 20)
    experts = partial(read_experts, file, arch, sizes.width, scores="sigmoid")
    size = head_size(file, arch, sizes.width, max(1, *heads))

    def block(i: int) -> Block:
        norm = take_norm(tensors, sizes, i)
        if kv_heads[i]:
            how = Attention(heads[i], None, scale=size**-0.5)
            return take_attention(tensors, sizes, i, norm, kv_heads[i], how, size)
        if not feeds[i]:
            return take_mixer(tensors, sizes, inner, i, norm)
        if f"blk.{i}.ffn_gate_inp.weight" not in tensors:
            return _take_feed(tensors, sizes, i, norm, feeds[i])
        shared = f"blk.{i}.ffn_up_shexp.weight" in tensors
        return Experts(norm, take_mixture(tensors, experts(), i, then="relu2", gated=False, shared=shared))

    return take_model(tensors, sizes, [(block(i),) for i in range(sizes.layers)])


def _take_feed(tensors: Tensors, sizes: Sizes, i: int, norm: Weight, inner: int) -> SquaredReluFeed:
    at = f"blk.{i}.ffn"

    def bias(name: str, size: int) -> Weight | None:
        return tensors.take(name, size) if name in tensors else None

    return SquaredReluFeed(
        norm,
        up=tensors.take(f"{at}_up.weight", inner, sizes.width),
        down=tensors.take(f"{at}_down.weight", sizes.width, inner),
        up_bias=bias(f"{at}_up.bias", inner),
        down_bias=bias(f"{at}_down.bias", sizes.width),
    )
