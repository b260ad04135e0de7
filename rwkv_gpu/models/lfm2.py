"""LFM2: most layers are a gated short convolution, the others attention; a feed-forward or experts follow each."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Cache, HeadNorms, Ops, Rms, State, Tensor, Weight
from .experts import read_experts, take_mixture
from .hybrid import (
    Block,
    Experts,
    Hybrid,
    Sizes,
    head_size,
    read_kv_heads,
    read_sizes,
    take_attention,
    take_feed,
    take_model,
    take_norm,
)
from .rope import read_rope
from .tensors import LONGEST_CONTEXT, Tensors


@dataclass(frozen=True)
class ShortConvolution:
    """add + W_out · (c · conv(b · x)), with b, c, x = W_in norm(x)"""

    norm: Weight  # [D]
    project: Weight  # [3 D, D]
    conv: Weight  # [D · taps]
    output: Weight  # [D, D]
    past: State  # [taps - 1, D]
    caches: Sequence[Cache] = ()

    @property
    def states(self) -> Sequence[State]:
        return (self.past,)

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        projected = g.linear(x, self.project, norm=Rms(self.norm, eps))
        return g.linear(g.conv1d(projected, self.conv, self.past, gated=True), self.output, add=add)


def load(file: GGUFFile, arch: str) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes = read_sizes(file, arch, tensors)
    inner = file.int(f"{arch}.feed_forward_length", low=1, high=1 << 20)
    mixtures = file.int(f"{arch}.expert_count", low=0, default=0) > 0
    dense = file.int(f"{arch}.leading_dense_block_count", low=0, default=0) if mixtures else sizes.layers
    experts = read_experts(file, arch, sizes.width, scores="sigmoid", normalise=True) if mixtures else None

    def feed(i: int) -> Block:
        norm = f"blk.{i}.ffn_norm.weight"
        if experts is None or i < dense:
            return take_feed(tensors, sizes, i, inner, norm)
        return Experts(tensors.take(norm, sizes.width), take_mixture(tensors, experts, i))

    mixers = _take_mixers(file, tensors, sizes)
    layers = [(mixer, feed(i)) for i, mixer in enumerate(mixers)]
    return take_model(tensors, sizes, layers, last_norm="token_embd_norm.weight")


def _take_mixers(file: GGUFFile, tensors: Tensors, sizes: Sizes) -> list[Block]:
    """What comes first in each layer: attention where it has heads of keys and values."""
    arch, width = sizes.arch, sizes.width
    heads = file.int(f"{arch}.attention.head_count", low=1, high=1 << 12)
    kv_heads = read_kv_heads(file, sizes, [heads] * sizes.layers)
    taps = file.int(f"{arch}.shortconv.l_cache", low=2, high=16)
    window = file.int(f"{arch}.attention.sliding_window", low=0, high=LONGEST_CONTEXT, default=0)
    size = head_size(file, arch, width, heads)
    rope = read_rope(file, arch, tensors, "neox", size, sizes.context)

    def attention(i: int, kv: int) -> Block:
        at = f"blk.{i}.attn"
        q_norm, k_norm = (tensors.take(f"{at}_{x}_norm.weight", size) for x in "qk")
        norms = HeadNorms(sizes.eps, q_norm, k_norm)
        how = Attention(heads, rope, scale=size**-0.5, norms=norms, window=window)
        return take_attention(tensors, sizes, i, take_norm(tensors, sizes, i), kv, how, size)

    return [attention(i, kv) if kv else _convolution(tensors, sizes, taps, i) for i, kv in enumerate(kv_heads)]


def _convolution(tensors: Tensors, sizes: Sizes, taps: int, i: int) -> ShortConvolution:
    at, width = f"blk.{i}.shortconv", sizes.width
    return ShortConvolution(
        norm=take_norm(tensors, sizes, i),
        project=tensors.take(f"{at}.in_proj.weight", 3 * width, width),
        conv=tensors.take_flat(f"{at}.conv.weight", width, taps),
        output=tensors.take(f"{at}.out_proj.weight", width, width),
        past=State(f"blk.{i}.conv", (taps - 1, width)),
    )
