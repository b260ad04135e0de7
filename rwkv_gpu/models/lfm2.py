"""LFM2: most layers are a gated short convolution, the others attention; a feed-forward or experts follow each."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Cache, HeadNorms, Ops, Rms, State, Tensor, Weight
from .hybrid import Block, Hybrid, HybridFile
from .tensors import LONGEST_CONTEXT


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


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    layers, experts = source.sizes.layers, None
    dense = layers
    if source.has_experts:
        dense = file.int(f"{source.arch}.leading_dense_block_count", low=0, default=0)
        experts = source.read_experts(scores="sigmoid", normalise=True)
    mixers = _take_mixers(source)
    seconds = (
        source.feed(i, source.inner) if experts is None or i < dense else source.experts(i, experts)
        for i in range(layers)
    )
    return source.model(list(zip(mixers, seconds, strict=True)), last_norm="token_embd_norm")


def _take_mixers(source: HybridFile) -> list[Block]:
    """Takes the first half of each layer: attention if the layer has key and value heads, else a convolution."""
    tensors, sizes, heads = source.tensors, source.sizes, source.heads
    kv_heads, size = source.kv_heads([heads] * sizes.layers), source.head_size(heads)
    taps, rope = source.integer("shortconv.l_cache", 2, 16), source.rope("neox", size)
    window = source.integer("attention.sliding_window", 0, LONGEST_CONTEXT, default=0)

    def attention(i: int, kv: int) -> Block:
        q_norm, k_norm = (tensors.take(f"blk.{i}.attn_{x}_norm.weight", size) for x in "qk")
        norms = HeadNorms(sizes.eps, q_norm, k_norm)
        how = Attention(heads, rope, scale=size**-0.5, norms=norms, window=window)
        return source.attention(i, source.norm(i), kv, how, size)

    return [attention(i, kv) if kv else _convolution(source, taps, i) for i, kv in enumerate(kv_heads)]


def _convolution(source: HybridFile, taps: int, i: int) -> ShortConvolution:
    at, width, tensors = f"blk.{i}.shortconv", source.sizes.width, source.tensors
    return ShortConvolution(
        norm=source.norm(i),
        project=tensors.take(f"{at}.in_proj.weight", 3 * width, width),
        conv=tensors.take_flat(f"{at}.conv.weight", width, taps),
        output=tensors.take(f"{at}.out_proj.weight", width, width),
        past=State(f"blk.{i}.conv", (taps - 1, width)),
    )
