"""What models with recurrent layers share: a residual stream, and the blocks that add to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Cache, Ops, Rms, State, Tensor, Weight
from .dense import read_eps, take_biases, take_gates, take_qkv, take_qkv_biases
from .experts import ExpertSizes, Mixture, mixture, take_mixture
from .latent import LatentSelfAttention, LatentSizes, latent_self_attention
from .layered import normed
from .tensors import LONGEST_CONTEXT, Tensors
from .transformer import HEAD_STEP, LARGEST_HEAD, FeedForward, Output, SelfAttention, inner, output, self_attention


class Block(Protocol):
    """A part of a layer: it looks at the residual stream and adds to it."""

    @property
    def states(self) -> Sequence[State]:
        """What it carries from step to step."""

    @property
    def caches(self) -> Sequence[Cache]:
        """Its keys and values."""

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        """add + branch(norm(x)), [T, D]"""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model that all its blocks know."""

    arch: str
    layers: int
    width: int  # D
    vocabulary: int  # V
    eps: float
    context: int  # positions it was trained on


@dataclass(frozen=True)
class Hybrid:
    """A model: its sizes and its blocks, layer by layer."""

    sizes: Sizes
    weights: tuple[Weight, ...]
    embedding: Weight  # [V, D]
    layers: tuple[tuple[Block, ...], ...]
    last_norm: Rms
    head: Weight  # [V, D]
    embedding_scale: float = 1.0
    logit_scale: float = 1.0

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return self.sizes.vocabulary

    @property
    def states(self) -> list[State]:
        """The recurrent states of a sequence."""
        return [state for layer in self.layers for block in layer for state in block.states]

    @property
    def caches(self) -> list[Cache]:
        """The keys and values of the layers that attend."""
        return [cache for layer in self.layers for block in layer for cache in block.caches]

    @property
    def context(self) -> int | None:
        """Positions it was trained on; no limit where nothing attends."""
        return self.sizes.context if self.caches else None

    def forward(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The logits of the requested rows, [R, V]"""
        return g.linear(self._trunk(g, ids), self.head, norm=self.last_norm, scale=self.logit_scale)

    def hidden(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The input of the head for these rows, [R, D]"""
        return normed(g, self._trunk(g, ids), self.last_norm)

    def _trunk(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The requested rows after all layers, [R, D]"""
        x = g.embed(self.embedding, ids, scale=self.embedding_scale)  # [T, D]
        for i, layer in enumerate(self.layers):
            with g.layer(i):
                for block in layer:
                    x = block(g, x, x, self.sizes.eps)
        return g.pick(x)


@dataclass(frozen=True)
class Attends:
    """add + scale · W_o · attention(W_q h, W_k h, W_v h), h = norm(x)"""

    p: SelfAttention
    states = ()

    @property
    def caches(self) -> Sequence[Cache]:
        return (self.p.cache,)

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:  # noqa: ARG002 - its norm knows
        return self_attention(g, self.p, x, add)


@dataclass(frozen=True)
class AttendsToLatents:
    """x + latent attention of norm(x)"""

    p: LatentSelfAttention
    states = ()

    @property
    def caches(self) -> Sequence[Cache]:
        return (self.p.cache,)

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:  # noqa: ARG002 - its norm knows
        assert add is x, "it adds to what it looks at"
        return latent_self_attention(g, self.p, x)


@dataclass(frozen=True)
class GatedFeed:
    """add + scale · W_down · (silu(W_gate h) · W_up h), h = norm(x), each with the bias that the file has"""

    p: FeedForward
    states = ()
    caches = ()

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:  # noqa: ARG002 - its norm knows
        return output(g, self.p.output, inner(g, self.p, x), add)


@dataclass(frozen=True)
class Experts:
    """add + scale · mixture(norm(x))"""

    norm: Weight | None  # [D]; none where it reads what is normed
    p: Mixture
    scale: float = 1.0
    states = ()
    caches = ()

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        return mixture(g, self.p, x, Rms(self.norm, eps) if self.norm else None, add, scale=self.scale)


@dataclass(frozen=True)
class Parallel:
    """Several blocks that look at the same x"""

    blocks: tuple[Block, ...]

    @property
    def states(self) -> Sequence[State]:
        return [state for block in self.blocks for state in block.states]

    @property
    def caches(self) -> Sequence[Cache]:
        return [cache for block in self.blocks for cache in block.caches]

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        for block in self.blocks:
            add = block(g, x, add, eps)
        return add


def read_sizes(file: GGUFFile, arch: str, tensors: Tensors) -> Sizes:
    """The sizes in the metadata. The last blocks may predict further tokens: they are no layers."""
    blocks = file.int(f"{arch}.block_count", low=1, high=1024)
    layers = blocks - file.int(f"{arch}.nextn_predict_layers", low=0, high=blocks - 1, default=0)
    tensors.skip_blocks(range(layers, blocks))
    if not file.bool(f"{arch}.attention.causal", default=True):
        raise UnsupportedModel(f"{file.path}: '{arch}' whose tokens see those that follow is not supported")
    return Sizes(
        arch,
        layers,
        width=file.int(f"{arch}.embedding_length", low=1, high=1 << 16),
        vocabulary=tensors.dimension("token_embd.weight", 0),
        eps=read_eps(file, arch),
        context=file.int(f"{arch}.context_length", low=1, high=LONGEST_CONTEXT),
    )


def by_layer(file: GGUFFile, key: str, layers: int, low: int, high: int) -> list[int]:
    """A number for each layer: the file has an array of them, or one for all."""
    if isinstance(file.metadata.get(key), int):
        return [file.int(key, low=low, high=high)] * layers
    values = [int(value) for value in file.ints(key)]
    if len(values) < layers or not all(low <= value <= high for value in values):
        raise Tensors(file).bad(f"metadata key '{key}'", str(values), f"{layers} integers from {low} to {high}")
    return values[:layers]


def read_kv_heads(file: GGUFFile, sizes: Sizes, heads: list[int], most: int | None = None) -> list[int]:
    """Heads of keys and values of each layer, which are the `heads` of queries where the file does not say it."""
    key = f"{sizes.arch}.attention.head_count_kv"
    return by_layer(file, key, sizes.layers, 0, most or max(heads)) if key in file.metadata else heads


def read_recurrent_layers(file: GGUFFile, tensors: Tensors, sizes: Sizes, interval: int) -> list[bool]:
    """Which layers have a recurrence: the file says it of each, or says how far apart those are that attend."""
    key = f"{sizes.arch}.attention.recurrent_layers"
    if key in file.metadata:
        said = np.asarray(file.metadata[key])
        if said.ndim != 1 or len(said) < sizes.layers or said.dtype.kind not in "biu":
            raise tensors.bad(f"metadata key '{key}'", str(said), f"{sizes.layers} booleans")
        return [bool(one) for one in said[: sizes.layers]]
    interval = file.int(f"{sizes.arch}.full_attention_interval", low=1, high=1024, default=interval)
    return [(i + 1) % interval != 0 for i in range(sizes.layers)]


def take_model(
    tensors: Tensors,
    sizes: Sizes,
    layers: Sequence[tuple[Block, ...]],
    *,
    last_norm: str = "output_norm.weight",
    embedding_scale: float = 1.0,
    logit_scale: float = 1.0,
) -> Hybrid:
    """A model of these layers; refuses a file that has other tensors, too."""
    shape = sizes.vocabulary, sizes.width
    embedding = tensors.take("token_embd.weight", *shape)
    bias = last_norm.replace("weight", "bias")  # which QRWKV may have
    shift = tensors.take(bias, sizes.width) if bias in tensors else None
    norm = Rms(tensors.take(last_norm, sizes.width), sizes.eps, shift)
    head = tensors.take("output.weight", *shape) if "output.weight" in tensors else embedding
    tensors.refuse_the_rest()
    weights = tuple(tensors.taken)
    return Hybrid(sizes, weights, embedding, tuple(layers), norm, head, embedding_scale, logit_scale)


def head_size(file: GGUFFile, arch: str, width: int, heads: int) -> int:
    """How many numbers a head of attention has."""
    size = file.int(f"{arch}.attention.key_length", low=1, high=1 << 12, default=width // heads)
    file.int(f"{arch}.attention.value_length", low=size, high=size, default=size)
    if not size or size % HEAD_STEP or size > LARGEST_HEAD:
        known = f"multiples of {HEAD_STEP} up to {LARGEST_HEAD}"
        raise UnsupportedModel(f"{file.path}: heads of size {size} are not supported; known: {known}")
    return size


def take_norm(tensors: Tensors, sizes: Sizes, i: int) -> Weight:
    """The norm before what mixes tokens in a layer."""
    return tensors.take(f"blk.{i}.attn_norm.weight", sizes.width)


def take_attention(
    tensors: Tensors,
    sizes: Sizes,
    i: int,
    norm: Weight | None,
    kv_heads: int,
    how: Attention,
    size: int,
    *,
    scale: float = 1.0,
) -> Attends:
    """The attention of a layer; it has the window that `how` says."""
    at, width = f"blk.{i}.attn", sizes.width
    if how.heads % kv_heads:
        what = f"metadata key '{sizes.arch}.attention.head_count_kv'"
        raise tensors.bad(what, str(kv_heads), f"a divisor of the {how.heads} heads")
    rows, bias = (how.heads * size, kv_heads * size, kv_heads * size), f"{at}_output.bias"
    q, k, v = take_qkv(tensors, at, rows, width)
    return Attends(
        SelfAttention(
            norm=Rms(norm, sizes.eps) if norm else None,
            q=q,
            k=k,
            v=v,
            biases=take_qkv_biases(tensors, at, rows),
            whole_norms=None,
            gate=None,
            output=Output(
                tensors.take(f"{at}_output.weight", width, rows[0]),
                tensors.take(bias, width) if bias in tensors else None,
                scale=scale,
            ),
            cache=Cache(f"blk.{i}.kv", kv_heads, size, window=how.window),
            how=how,
            value=size,
        )
    )


def take_feed(tensors: Tensors, sizes: Sizes, i: int, inner: int, norm: str, *, scale: float = 1.0) -> GatedFeed:
    """The gated feed-forward of a layer."""
    at, width, bias = f"blk.{i}.ffn", sizes.width, f"blk.{i}.ffn_down.bias"
    return GatedFeed(
        FeedForward(
            Rms(tensors.take(norm, width), sizes.eps),
            take_gates(tensors, at, inner, width),
            "silu",
            Output(
                tensors.take(f"{at}_down.weight", width, inner),
                tensors.take(bias, width) if bias in tensors else None,
                scale=scale,
            ),
            take_biases(tensors, at, inner, ("gate", "up")),
        )
    )


def take_second(file: GGUFFile, tensors: Tensors, sizes: Sizes, experts: ExpertSizes, i: int) -> Block:
    """What follows the mixer of a layer: a feed-forward in the leading layers, and then experts."""
    norm, arch = f"blk.{i}.ffn_norm.weight", sizes.arch
    if i < file.int(f"{arch}.leading_dense_block_count", low=0, high=sizes.layers, default=0):
        return take_feed(tensors, sizes, i, file.int(f"{arch}.feed_forward_length", low=1, high=1 << 20), norm)
    shared = file.int(f"{arch}.expert_shared_count", low=0, high=64, default=0) > 0
    return Experts(tensors.take(norm, sizes.width), take_mixture(tensors, experts, i, shared=shared))


def read_latent_sizes(file: GGUFFile, tensors: Tensors, sizes: Sizes, heads: int) -> LatentSizes:
    """The sizes of latent attention in a hybrid; queries are of low rank where the file says so."""
    arch, at = sizes.arch, f"{sizes.arch}.attention"
    rotary = file.int(f"{arch}.rope.dimension_count", low=2, high=1 << 12)
    key = file.int(f"{at}.key_length_mla", low=1, high=1 << 12)
    if key <= rotary:
        raise tensors.bad(f"metadata key '{at}.key_length_mla'", str(key), f"more than the {rotary} dims of the key")
    return LatentSizes(
        width=sizes.width,
        heads=heads,
        latent=file.int(f"{at}.kv_lora_rank", low=1, high=1 << 14),
        nope=key - rotary,
        rotary=rotary,
        value=file.int(f"{at}.value_length_mla", low=1, high=1 << 12),
        q_rank=file.int(f"{at}.q_lora_rank", low=0, high=1 << 14, default=0),
        eps=sizes.eps,
    )
