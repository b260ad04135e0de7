"""The forward pass of transformers: attention, a gated feed-forward, and the trunk around them.

Families differ in what they declare (`dense.py`): where they norm, what turns and who sees what, which activation, and
which scales and caps.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..ops.vocabulary import Activation, Alternating, Attention, Cache, Ops, Rms, State, Tensor, Weight

HEAD_STEP, LARGEST_HEAD = 8, 512  # sizes of heads in caches, and the largest


@dataclass(frozen=True)
class Hyper:
    """The sizes of a model. What may differ from layer to layer has one entry for each."""

    layers: int
    width: int  # D
    inner: tuple[int, ...]  # of the feed-forward
    heads: tuple[int, ...]  # H
    kv_heads: tuple[int, ...]  # KV
    head_size: int  # N
    vocabulary: int  # V
    eps: float
    context: int  # positions it was trained on
    window: int  # positions that a query of a window layer sees; 0 is all


@dataclass(frozen=True)
class Output:
    """How a branch returns to the residual stream."""

    weight: Weight  # [D, K]
    bias: Weight | None = None  # [D]
    norm: Rms | None = None  # after the matrix
    scale: float = 1.0


@dataclass(frozen=True)
class SelfAttention:
    """Parameters and cache of one attention."""

    norm: Rms | None  # before the matrices
    q: Weight  # [H · N, D]
    k: Weight  # [KV · N, D]
    v: Weight  # [KV · N, D]
    biases: tuple[Weight | None, ...]  # of q, k, v
    whole_norms: tuple[Rms, Rms] | None  # of q and k, over all their heads
    gate: Weight | None  # [H · N, D]
    output: Output
    cache: Cache
    how: Attention


@dataclass(frozen=True)
class FeedForward:
    """Parameters of one feed-forward."""

    norm: Rms | None  # before the matrices
    gates: Alternating | tuple[Weight, Weight]  # gate and up: in turns [2 · inner, D], or where formats differ apart
    then: Activation
    output: Output


def self_attention(g: Ops[Tensor], p: SelfAttention, x: Tensor) -> Tensor:
    """x + output(attention(W_q h, W_k h, W_v h) · sigmoid(W_gate h)), h = norm(x)"""
    if p.gate is None:
        q, k, v = g.linears([x, x, x], [p.q, p.k, p.v], bias=p.biases, norm=p.norm)
    else:
        matrices, biases = [p.q, p.k, p.v, p.gate], (*p.biases, None)
        q, k, v, gate = g.linears(
            [x, x, x, x], matrices, then=["none", "none", "none", "sigmoid"], bias=biases, norm=p.norm
        )
    if p.whole_norms is not None:
        q, k = (g.rms_norm(y, norm.weight, norm.eps) for y, norm in zip((q, k), p.whole_norms, strict=True))
    y = attend(g, q, k, v, p.cache, p.how)
    return output(g, p.output, y if p.gate is None else g.mul(y, gate), x)


def attend(g: Ops[Tensor], q: Tensor, k: Tensor, v: Tensor, cache: Cache, how: Attention) -> Tensor:
    """attention(q, k, v), whose heads are padded where the cache has larger ones"""
    if not how.head:
        return g.attention(q, k, v, cache, how)
    q, k, v = (g.resize_heads(x, n, cache.size) for x, n in ((q, how.heads), (k, cache.heads), (v, cache.heads)))
    return g.resize_heads(g.attention(q, k, v, cache, how), how.heads, how.head)


def feed_forward(g: Ops[Tensor], p: FeedForward, x: Tensor) -> Tensor:
    """x + output(then(W_gate h) · W_up h), h = norm(x)"""
    return output(g, p.output, gated(g, p, x), x)


def gated(g: Ops[Tensor], p: FeedForward, x: Tensor) -> Tensor:
    """then(W_gate h) · W_up h, h = norm(x)"""
    if isinstance(p.gates, Alternating):
        return g.glu(x, p.gates, p.then, norm=p.norm)
    return g.mul(*g.linears([x, x], p.gates, then=[p.then, "none"], norm=p.norm))


def output(g: Ops[Tensor], p: Output, y: Tensor, x: Tensor) -> Tensor:
    """x + scale · norm(W y + bias)"""
    if p.norm is None:
        return g.linear(y, p.weight, bias=p.bias, add=x, scale=p.scale)
    return g.rms_norm(g.linear(y, p.weight, bias=p.bias), p.norm.weight, p.norm.eps, add=x, scale=p.scale)


@dataclass(frozen=True)
class Trunk:
    """A transformer without its feed-forwards: embedding, attentions, last norm and head."""

    hyper: Hyper
    embedding: Weight  # [V, D]
    embedding_scale: float
    embedding_norm: Rms | None
    attentions: tuple[SelfAttention, ...]
    last_norm: Rms
    head: Weight  # [V, D]
    logit_scale: float
    softcap: float  # of logits; 0 is none


@dataclass(frozen=True)
class OnTrunk(ABC):
    """A model on a trunk; its subclass defines the feed-forward."""

    trunk: Trunk
    weights: tuple[Weight, ...]

    @abstractmethod
    def feed(self, g: Ops[Tensor], i: int, x: Tensor) -> Tensor:
        """The second half of layer i"""

    def forward(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """softcap(scale · W_head norm(x)) of the requested rows, [R, V]"""
        p = self.trunk
        logits = g.linear(self.residual(g, ids), p.head, norm=p.last_norm, scale=p.logit_scale)
        return g.softcap(logits, p.softcap) if p.softcap else logits

    def hidden(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The input of the head for these rows, [R, D]"""
        norm = self.trunk.last_norm
        return g.rms_norm(self.residual(g, ids), norm.weight, norm.eps)

    def residual(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The requested rows after all layers, [R, D]"""
        p = self.trunk
        x = g.embed(p.embedding, ids, scale=p.embedding_scale)  # [T, D]
        if p.embedding_norm is not None:
            x = g.rms_norm(x, p.embedding_norm.weight, p.embedding_norm.eps)
        for i, attention in enumerate(p.attentions):
            with g.layer(i):
                x = self.feed(g, i, self_attention(g, attention, x))
        return g.pick(x)

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return self.trunk.hyper.vocabulary

    @property
    def states(self) -> list[State]:
        """None: all that a sequence needs is in its pages."""
        return []

    @property
    def caches(self) -> list[Cache]:
        """Keys and values, layer by layer."""
        return [p.cache for p in self.trunk.attentions]

    @property
    def context(self) -> int:
        """Positions it was trained on."""
        return self.trunk.hyper.context


@dataclass(frozen=True)
class Transformer(OnTrunk):
    """A dense model: a trunk with a feed-forward in each layer."""

    feeds: tuple[FeedForward, ...]

    def feed(self, g: Ops[Tensor], i: int, x: Tensor) -> Tensor:
        return feed_forward(g, self.feeds[i], x)
