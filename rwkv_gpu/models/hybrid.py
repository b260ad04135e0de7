"""The common part of models with recurrent layers: a residual stream, and blocks that add to it."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.cursor import shown
from ..gguf.file import REQUIRED, GGUFFile
from ..ops.vocabulary import (
    Attention,
    Cache,
    ClampedSwiglu,
    Glu,
    Ops,
    Pairing,
    Rms,
    Rope,
    Scores,
    State,
    Tensor,
    Weight,
)
from .dense import LIMIT, clamps_of, floats_by_layer, read_eps, take_biases, take_gates, take_qkv, take_qkv_biases
from .experts import ExpertSizes, Mixture, mixture, read_experts, take_mixture
from .heads import Head, read_head, take_head
from .latent import LatentSelfAttention, LatentSizes, latent_self_attention, write_latents
from .layered import Ends, FileHead, Layered
from .rope import read_rope
from .tensors import LONGEST_CONTEXT, Tensors
from .transformer import (
    HEAD_STEP,
    LARGEST_HEAD,
    FeedForward,
    Output,
    SelfAttention,
    inner,
    output,
    self_attention,
    write_keys,
)


class Block(Protocol):
    """A part of a layer, which reads the residual stream and adds to it."""

    @property
    def states(self) -> Sequence[State]:
        """Its recurrent states."""

    @property
    def caches(self) -> Sequence[Cache]:
        """Its KV caches."""

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        """add + branch(norm(x)), [T, D]"""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model that are common to all its blocks."""

    arch: str
    layers: int
    width: int  # D
    vocabulary: int  # V
    eps: float
    context: int  # positions it was trained on


@dataclass(frozen=True)
class Hybrid(Layered):
    """A model of blocks, layer by layer."""

    eps: float
    blocks: tuple[tuple[Block, ...], ...]

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        return self.streams(g, x, ids)[-1]

    def streams(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> list[Tensor]:  # noqa: ARG002 - layers see x alone
        """The residual stream before each layer, and after the last"""
        streams = [x]
        for i, layer in enumerate(self.blocks):
            with g.layer(i):
                for block in layer:
                    x = block(g, x, x, self.eps)
            streams.append(x)
        return streams

    @property
    def states(self) -> list[State]:
        """The recurrent states of a sequence."""
        return [state for layer in self.blocks for block in layer for state in block.states]

    @property
    def caches(self) -> list[Cache]:
        """The KV caches of the layers with attention."""
        return [cache for layer in self.blocks for block in layer for cache in block.caches]

    @property
    def context(self) -> int | None:
        """The context length of training; None without attention."""
        return self.ends.context if self.caches else None


class WritesKeys(Block, Protocol):
    """A block with attention, whose keys and values may be written without computing its result."""

    def write(self, g: Ops[Tensor], x: Tensor, eps: float) -> None:
        """Writes the keys and values of norm(x), for later rows."""


@dataclass(frozen=True)
class BlocksOfHead:
    """The layer of a draft head: attention, and the blocks after it."""

    attention: WritesKeys
    others: tuple[Block, ...]
    eps: float

    @property
    def caches(self) -> Sequence[Cache]:
        return self.attention.caches

    def write(self, g: Ops[Tensor], x: Tensor) -> None:
        self.attention.write(g, x, self.eps)

    def __call__(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        for block in (self.attention, *self.others):
            x = block(g, x, x, self.eps)
        return x


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

    def write(self, g: Ops[Tensor], x: Tensor, eps: float) -> None:  # noqa: ARG002 - its norm knows
        """Writes the keys and values of norm(x)."""
        write_keys(g, self.p, x)


@dataclass(frozen=True)
class AttendsToLatents:
    """add + latent attention of norm(x)"""

    p: LatentSelfAttention
    states = ()

    @property
    def caches(self) -> Sequence[Cache]:
        return self.p.caches

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor | None, eps: float) -> Tensor:  # noqa: ARG002
        return latent_self_attention(g, self.p, x, add)

    def write(self, g: Ops[Tensor], x: Tensor, eps: float) -> None:  # noqa: ARG002 - its norm knows
        """Writes the latents of norm(x)."""
        write_latents(g, self.p, x)


@dataclass(frozen=True)
class GatedFeed:
    """add + scale · W_down · (silu(W_gate h) · W_up h), h = norm(x), each with its bias, if the file has one"""

    p: FeedForward
    states = ()
    caches = ()

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor | None, eps: float) -> Tensor:  # noqa: ARG002
        return output(g, self.p.output, inner(g, self.p, x), add)


def norm_before(weight: Weight | None, eps: float) -> Rms | None:
    """The norm of a block's input; None if the input is normed already."""
    return Rms(weight, eps) if weight else None


@dataclass(frozen=True)
class Experts:
    """add + scale · mixture(norm(x))"""

    norm: Weight | None  # [D]; None if its input is normed already
    p: Mixture
    scale: float = 1.0
    states = ()
    caches = ()

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor | None, eps: float) -> Tensor:
        return mixture(g, self.p, x, norm_before(self.norm, eps), add, scale=self.scale)


@dataclass(frozen=True)
class Parallel:
    """Several blocks that read the same x"""

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


def by_layer(file: GGUFFile, key: str, layers: int, low: int, high: int) -> list[int]:
    """A number for each layer: the file has an array of them, or one for all."""
    if isinstance(file.metadata.get(key), int):
        return [file.int(key, low=low, high=high)] * layers
    values = [int(value) for value in file.ints(key)]
    if len(values) < layers or not all(low <= value <= high for value in values):
        raise Tensors(file).bad(f"metadata key '{key}'", str(values), f"{layers} integers from {low} to {high}")
    return values[:layers]


TakeLayer = Callable[["HybridFile", int], Sequence[Block]]


class HybridFile:
    """A file of a model of blocks: its keys, its sizes, and its tensors as blocks of layer i."""

    def __init__(self, file: GGUFFile) -> None:
        """Reads the sizes. Blocks at the end that predict further tokens do not count as layers."""
        self.file, self.tensors = file, Tensors(file)
        self.arch = arch = file.str("general.architecture")
        blocks = self.integer("block_count", 1, 1024)
        self.heads_after = self.integer("nextn_predict_layers", 0, blocks - 1, default=0)
        layers = blocks - self.heads_after
        self.tensors.skip_blocks(range(layers, blocks))
        if not file.bool(f"{arch}.attention.causal", default=True):
            raise UnsupportedModel(f"{file.path}: '{arch}' with tokens that attend to later ones is not supported")
        self.sizes = Sizes(
            arch,
            layers,
            width=self.integer("embedding_length", 1, 1 << 16),
            vocabulary=self.tensors.dimension("token_embd.weight", 0),
            eps=read_eps(file, arch),
            context=self.integer("context_length", 1, LONGEST_CONTEXT),
        )

    def integer(self, key: str, low: int = 1, high: int = 1 << 12, *, default: int | None = None) -> int:
        """A number from the metadata, which is required if there is no default."""
        return self.file.int(f"{self.arch}.{key}", low=low, high=high, default=REQUIRED if default is None else default)

    def by_layer(self, key: str, high: int = 1 << 12) -> list[int]:
        """A number for each layer; 0 if the layer has none."""
        return by_layer(self.file, f"{self.arch}.{key}", self.sizes.layers, 0, high)

    @property
    def heads(self) -> int:
        """The number of query heads, which is the same in all layers."""
        return self.integer("attention.head_count")

    @property
    def inner(self) -> int:
        """The width of feed-forwards."""
        return self.integer("feed_forward_length", 1, 1 << 20)

    @property
    def has_experts(self) -> bool:
        """True if any layer has experts."""
        return self.file.int(f"{self.arch}.expert_count", low=0, default=0) > 0

    def kv_heads(self, heads: Sequence[int], most: int | None = None) -> Sequence[int]:
        """The number of KV heads of each layer; defaults to `heads`, the number of query heads."""
        key = f"{self.arch}.attention.head_count_kv"
        said = key in self.file.metadata
        return by_layer(self.file, key, self.sizes.layers, 0, most or max(heads)) if said else heads

    def only_kv_heads(self, heads: int) -> int:
        """The number of KV heads, which is the same in all layers."""
        return self.integer("attention.head_count_kv", 1, heads, default=heads)

    def head_size(self, heads: int) -> int:
        """The size of an attention head."""
        size = self.integer("attention.key_length", default=self.sizes.width // heads)
        self.integer("attention.value_length", size, size, default=size)
        self.tensors.check_heads(size, HEAD_STEP, LARGEST_HEAD)
        return size

    def rope(self, pairing: Pairing, size: int) -> Rope:
        """The rotation of heads of the given size."""
        return read_rope(self.file, self.arch, self.tensors, pairing, size, self.sizes.context)

    def recurrent_layers(self, interval: int) -> list[bool]:
        """True if each layer is recurrent: the file has a flag per layer, or the period of attention layers."""
        if f"{self.arch}.attention.recurrent_layers" in self.file.metadata:
            return self.flags("attention.recurrent_layers")
        interval = self.integer("full_attention_interval", 1, 1024, default=interval)
        return [(i + 1) % interval != 0 for i in range(self.sizes.layers)]

    def flags(self, key: str) -> list[bool]:
        """A flag for each layer, which the file must have."""
        key, layers = f"{self.arch}.{key}", self.sizes.layers
        said = np.asarray(self.file.metadata.get(key))
        if said.ndim != 1 or len(said) < layers or said.dtype.kind not in "biu":
            raise self.tensors.bad(f"metadata key '{key}'", shown(self.file.metadata.get(key)), f"{layers} booleans")
        return [bool(one) for one in said[:layers]]

    def clamps(self, name: str, how: ClampedSwiglu) -> list[Glu]:
        """The gated activation `how` of each layer, with limits from the file."""
        key = f"{self.arch}.{name}"
        return clamps_of(floats_by_layer(self.file, key, self.sizes.layers, *LIMIT, default=0.0), how)

    def read_experts(self, *, scores: Scores = "softmax", normalise: bool | None = None) -> ExpertSizes:
        """The sizes of all mixtures."""
        return read_experts(self.file, self.arch, self.sizes.width, scores=scores, normalise=normalise)

    def latent_sizes(self, heads: int, *, rotates: bool = True) -> LatentSizes:
        """The sizes of latent attention; queries have low rank if the file has such a rank."""
        rotary = self.integer("rope.dimension_count", 2) if rotates else self.integer("rope.dimension_count", 0, 0)
        key = self.integer("attention.key_length_mla")
        if key <= rotary:
            what = f"metadata key '{self.arch}.attention.key_length_mla'"
            raise self.tensors.bad(what, str(key), f"more than the {rotary} dims of the key")
        return LatentSizes(
            width=self.sizes.width,
            heads=heads,
            latent=self.integer("attention.kv_lora_rank", 1, 1 << 14),
            nope=key - rotary,
            rotary=rotary,
            value=self.integer("attention.value_length_mla"),
            q_rank=self.integer("attention.q_lora_rank", 0, 1 << 14, default=0),
            eps=self.sizes.eps,
        )

    def norm(self, i: int) -> Weight:
        """The norm before attention or the recurrence."""
        return self.tensors.take(f"blk.{i}.attn_norm.weight", self.sizes.width)

    def attention(
        self, i: int, norm: Weight | None, kv_heads: int, how: Attention, size: int, *, scale: float = 1.0
    ) -> Attends:
        """Attention with the window that `how` states."""
        at, width, tensors = f"blk.{i}.attn", self.sizes.width, self.tensors
        tensors.check_divides(f"{self.arch}.attention.head_count_kv", kv_heads, how.heads)
        rows = how.heads * size, kv_heads * size, kv_heads * size
        q, k, v = take_qkv(tensors, at, rows, width)
        return Attends(
            SelfAttention(
                norm=norm_before(norm, self.sizes.eps),
                q=q,
                k=k,
                v=v,
                biases=take_qkv_biases(tensors, at, rows),
                whole_norms=None,
                gate=None,
                output=Output(
                    tensors.take(f"{at}_output.weight", width, rows[0]),
                    tensors.find(f"{at}_output.bias", width),
                    scale=scale,
                ),
                cache=Cache(f"blk.{i}.kv", kv_heads, size, window=how.window),
                how=how,
                value=size,
            )
        )

    def feed(
        self, i: int, inner: int, norm: str = "ffn_norm.weight", *, scale: float = 1.0, then: Glu = "silu"
    ) -> GatedFeed:
        """A gated feed-forward."""
        at, width, tensors = f"blk.{i}.ffn", self.sizes.width, self.tensors
        return GatedFeed(
            FeedForward(
                Rms(tensors.take(f"blk.{i}.{norm}", width), self.sizes.eps),
                take_gates(tensors, at, inner, width, separate=not isinstance(then, str)),
                then,
                Output(
                    tensors.take(f"{at}_down.weight", width, inner),
                    tensors.find(f"{at}_down.bias", width),
                    scale=scale,
                ),
                take_biases(tensors, at, inner, ("gate", "up")),
            )
        )

    def experts(
        self,
        i: int,
        experts: ExpertSizes,
        *,
        norm: str = "ffn_norm",
        shared: bool = False,
        scale: float = 1.0,
        then: Glu = "silu",
        shared_then: Glu | None = None,
    ) -> Experts:
        """Experts behind a norm."""
        before = self.tensors.take(f"blk.{i}.{norm}.weight", self.sizes.width)
        found = take_mixture(self.tensors, experts, i, shared=shared, then=then, shared_then=shared_then)
        return Experts(before, found, scale)

    def second(self, i: int, experts: ExpertSizes, then: Glu = "silu") -> Block:
        """The second half of a layer: a feed-forward in the leading layers, experts in the others."""
        if i < self.integer("leading_dense_block_count", 0, self.sizes.layers, default=0):
            return self.feed(i, self.inner, then=then)
        shared = self.integer("expert_shared_count", 0, 64, default=0) > 0
        return self.experts(i, experts, shared=shared, then=then)

    def model(
        self,
        layers: Sequence[tuple[Block, ...]],
        *,
        last_norm: str | None = "output_norm",
        embedding_scale: float = 1.0,
        logit_scale: float = 1.0,
        head_layer: TakeLayer | None = None,
        head_norm_eps: float | None = None,
        headless: bool = False,
        kind: type[Hybrid] = Hybrid,
        **more: Any,
    ) -> Hybrid:
        """Builds a model of these layers, of the given kind with `more` fields; refuses further tensors.

        `last_norm` is the norm after all layers. `head_layer` reads the layer of a draft head. With `head_norm_eps` the
        last norm of the head is a layer norm. A headless model has no next tokens.
        """
        sizes, tensors = self.sizes, self.tensors
        shape = sizes.vocabulary, sizes.width
        embedding = tensors.take("token_embd.weight", *shape)
        norm = None
        if last_norm:
            shift = tensors.find(f"{last_norm}.bias", sizes.width)  # exists in QRWKV only
            norm = Rms(tensors.take(f"{last_norm}.weight", sizes.width), sizes.eps, shift)
        head = None if headless else tensors.find("output.weight", *shape) or embedding
        tensors.refuse_the_rest()
        ends = Ends(embedding, norm, head, sizes.context, embedding_scale, logit_scale=logit_scale)
        found = self._head(ends, head_layer, head_norm_eps)
        return kind(ends, tuple(tensors.taken), sizes.eps, tuple(layers), file_head=found, **more)

    def _head(self, ends: Ends, take: TakeLayer | None, norm_eps: float | None) -> FileHead | None:
        """The draft heads of the file. Each has the tensors of a layer, which `take` reads."""
        if take is None:
            return None

        def head(index: int) -> Head:
            source = copy.copy(self)
            source.tensors = Tensors(self.file)
            attention, *others = take(source, index)
            block = BlocksOfHead(cast(WritesKeys, attention), tuple(others), self.sizes.eps)
            eps = self.sizes.eps
            return take_head(source.tensors, index, ends, eps, block, normed_rows=True, layer_norm_eps=norm_eps)

        return read_head(self.file, self.sizes.layers, self.heads_after, head)
