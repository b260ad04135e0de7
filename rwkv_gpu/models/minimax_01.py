"""MiniMax-01 and MiniMax-M1: seven layers of lightning attention for each layer of softmax attention. All have experts.

A branch is added to its normed input: x becomes scale · h + branch(h), h = norm(x).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Cache, Ops, State, Tensor, Weight
from .experts import take_mixture
from .hybrid import Block, Experts, Hybrid, HybridFile

INTERVAL = 8  # every eighth layer has softmax attention, unless the file states another interval
HEAD_STEP, LARGEST_HEAD = 16, 256  # sizes of lightning attention that the kernels support
MIN_FADING = 1e-5  # smallest factor of the decay, in the last layer


@dataclass(frozen=True)
class Added:
    """scale · h + branch(h), h = norm(x)"""

    norm: Weight  # [D]
    branch: Block
    scale: float

    @property
    def states(self) -> Sequence[State]:
        return self.branch.states

    @property
    def caches(self) -> Sequence[Cache]:
        return self.branch.caches

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:  # noqa: ARG002 - it adds to h
        h = g.rms_norm(x, self.norm, eps)
        return self.branch(g, h, g.scale(h, self.scale), eps)


@dataclass(frozen=True)
class Lightning:
    """add + W_o · (norm(attention(silu(W_qkv x))) · sigmoid(W_g x))"""

    qkv: Weight  # [H · 3 · N, D]
    gate: Weight  # [H · N, D]
    decays: tuple[float, ...]  # decays of heads
    norm: Weight  # [H · N]
    output: Weight  # [D, H · N]
    state: State  # [H, N, N]
    caches: Sequence[Cache] = ()

    @property
    def states(self) -> Sequence[State]:
        return (self.state,)

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        qkv, gate = g.linears([x, x], [self.qkv, self.gate], then=["silu", "sigmoid"])
        y = g.rms_norm(g.lightning_attention(qkv, self.decays, self.state), self.norm, eps)
        return g.linear(g.mul(y, gate), self.output, add=add)


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    tensors, width, heads = source.tensors, source.sizes.width, source.heads
    recurrent, kv_heads = source.recurrent_layers(INTERVAL), source.only_kv_heads(heads)
    size = source.head_size(heads)
    how = Attention(heads, source.rope("neox", size), scale=size**-0.5)
    experts = source.read_experts(normalise=True)
    scale = file.float(f"{source.arch}.residual_scale", 1e-6, 1e6)

    def layer(i: int) -> tuple[Block, ...]:
        first: Block
        if recurrent[i]:
            first = _take_lightning(source, heads, size, i)
        else:
            first = source.attention(i, None, kv_heads, how, size)
        second = Experts(None, take_mixture(tensors, experts, i))
        norms = source.norm(i), tensors.take(f"blk.{i}.ffn_norm.weight", width)
        return Added(norms[0], first, scale), Added(norms[1], second, scale)

    return source.model([layer(i) for i in range(source.sizes.layers)])


def _take_lightning(source: HybridFile, heads: int, size: int, i: int) -> Lightning:
    at, inner, tensors, sizes = f"blk.{i}.attn", heads * size, source.tensors, source.sizes
    tensors.check_heads(size, HEAD_STEP, LARGEST_HEAD)
    return Lightning(
        qkv=tensors.take(f"{at}_qkv.weight", 3 * inner, sizes.width),
        gate=tensors.take(f"{at}_gate.weight", inner, sizes.width),
        decays=decays(heads, i, sizes.layers),
        norm=tensors.take(f"{at}_norm_2.weight", inner),
        output=tensors.take(f"{at}_output.weight", sizes.width, inner),
        state=State(f"blk.{i}.lightning", (heads, size, size)),
    )


def decays(heads: int, i: int, layers: int) -> tuple[float, ...]:
    """The decays of the heads of layer i. Slopes fall by head as in ALiBi, and towards the last layer."""
    ratio = 2 ** -(2 ** -(math.log2(heads) - 3))
    fading = 1 - i / max(1, layers - 1) + MIN_FADING
    return tuple(math.exp(-fading * ratio ** (h + 1)) for h in range(heads))
