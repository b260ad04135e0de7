"""What dense transformers share: attention with rotary positions, a gated feed-forward, and the trunk around them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Alternating, Attention, Cache, HeadNorms, Ops, Pairing, Rms, Rope, State, Tensor, Weight
from .rope import read_rope
from .tensors import EPS, LONGEST_CONTEXT, Tensors

HEAD_STEP, LARGEST_HEAD = 8, 256  # what the kernels take


@dataclass(frozen=True)
class Hyper:
    """The sizes of a model."""

    layers: int
    width: int  # D
    inner: int  # of the feed-forward
    heads: int  # H
    kv_heads: int  # KV
    head_size: int  # N
    vocabulary: int  # V
    eps: float
    context: int  # positions it was trained on
    window: int  # positions that a query sees; 0 is all


@dataclass(frozen=True)
class SelfAttention:
    """Parameters and cache of one attention."""

    norm: Weight  # [D]
    q: Weight  # [H · N, D]
    k: Weight  # [KV · N, D]
    v: Weight  # [KV · N, D]
    biases: tuple[Weight | None, ...]  # of q, k, v
    output: Weight  # [D, H · N]
    output_bias: Weight | None  # [D]
    cache: Cache
    how: Attention


@dataclass(frozen=True)
class FeedForward:
    """Parameters of one feed-forward."""

    norm: Weight  # [D]
    gates: Alternating | tuple[Weight, Weight]  # gate and up: in turns [2 · inner, D], or where formats differ apart
    down: Weight  # [D, inner]


def self_attention(g: Ops[Tensor], p: SelfAttention, x: Tensor, eps: float) -> Tensor:
    """x + W_o · attention(W_q h, W_k h, W_v h), h = norm(x)"""
    q, k, v = g.linears([x, x, x], [p.q, p.k, p.v], bias=p.biases, norm=Rms(p.norm, eps))
    y = g.attention(q, k, v, p.cache, p.how)
    return g.linear(y, p.output, bias=p.output_bias, add=x)


def feed_forward(g: Ops[Tensor], p: FeedForward, x: Tensor, eps: float) -> Tensor:
    """x + W_down · (silu(W_gate h) · W_up h), h = norm(x)"""
    norm = Rms(p.norm, eps)
    if isinstance(p.gates, Alternating):
        inner = g.glu(x, p.gates, "silu", norm=norm)
    else:
        inner = g.mul(*g.linears([x, x], p.gates, then=["silu", "none"], norm=norm))
    return g.linear(inner, p.down, add=x)


@dataclass(frozen=True)
class Trunk:
    """A transformer without its feed-forwards: embedding, attentions, last norm and head."""

    hyper: Hyper
    embedding: Weight  # [V, D]
    attentions: tuple[SelfAttention, ...]
    last_norm: Weight  # [D]
    head: Weight  # [V, D]


@dataclass(frozen=True)
class OnTrunk(ABC):
    """A model on a trunk; its subclass defines the feed-forward."""

    trunk: Trunk
    weights: tuple[Weight, ...]

    @abstractmethod
    def feed(self, g: Ops[Tensor], i: int, x: Tensor) -> Tensor:
        """The second half of layer i"""

    def forward(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The logits of the requested rows, [R, V]"""
        trunk = self.trunk
        return g.linear(self._trunk(g, ids), trunk.head, norm=Rms(trunk.last_norm, trunk.hyper.eps))

    def hidden(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The input of the head for these rows, [R, D]"""
        return g.rms_norm(self._trunk(g, ids), self.trunk.last_norm, self.trunk.hyper.eps)

    def _trunk(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The requested rows after all layers, [R, D]"""
        x = g.embed(self.trunk.embedding, ids)  # [T, D]
        for i, p in enumerate(self.trunk.attentions):
            with g.layer(i):
                x = self.feed(g, i, self_attention(g, p, x, self.trunk.hyper.eps))
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
        return feed_forward(g, self.feeds[i], x, self.trunk.hyper.eps)


def load_dense(
    file: GGUFFile, arch: str, pairing: Pairing, *, biases: bool = False, norms: bool = False
) -> Transformer:
    """The model that a file describes; `biases` and `norms` say whether q and k (and v) must have them."""
    tensors = Tensors(file)
    if file.int(f"{arch}.expert_count", default=0):
        raise UnsupportedModel(f"{file.path}: '{arch}' with experts is not supported; take a dense model")
    hyper = read_hyper(file, arch, tensors)
    trunk = take_trunk(file, arch, tensors, hyper, pairing, biases=biases, norms=norms)
    feeds = tuple(
        take_feed(tensors, f"blk.{i}.ffn", tensors.take(f"blk.{i}.ffn_norm.weight", hyper.width), hyper.inner)
        for i in range(hyper.layers)
    )
    tensors.refuse_the_rest()
    return Transformer(trunk, tuple(tensors.taken), feeds)


def read_hyper(file: GGUFFile, arch: str, tensors: Tensors) -> Hyper:
    """The sizes in the metadata; raises BadFile where they contradict each other."""
    width = file.int(f"{arch}.embedding_length", low=1, high=1 << 16)
    heads = file.int(f"{arch}.attention.head_count", low=1, high=1 << 12)
    size = file.int(f"{arch}.attention.key_length", low=1, high=1 << 12, default=width // heads)
    file.int(f"{arch}.attention.value_length", low=size, high=size, default=size)
    hyper = Hyper(
        layers=file.int(f"{arch}.block_count", low=1, high=1024),
        width=width,
        inner=file.int(f"{arch}.feed_forward_length", low=1, high=1 << 20),
        heads=heads,
        kv_heads=file.int(f"{arch}.attention.head_count_kv", low=1, high=heads, default=heads),
        head_size=size,
        vocabulary=tensors.dimension("token_embd.weight", 0),
        eps=file.float(f"{arch}.attention.layer_norm_rms_epsilon", *EPS),
        context=file.int(f"{arch}.context_length", low=1, high=LONGEST_CONTEXT),
        window=file.int(f"{arch}.attention.sliding_window", low=0, high=LONGEST_CONTEXT, default=0),
    )
    if heads % hyper.kv_heads:
        what = f"metadata key '{arch}.attention.head_count_kv'"
        raise tensors.bad(what, str(hyper.kv_heads), f"a divisor of the {heads} heads")
    if size % HEAD_STEP or size > LARGEST_HEAD:
        known = f"multiples of {HEAD_STEP} up to {LARGEST_HEAD}"
        raise UnsupportedModel(f"{file.path}: heads of size {size} are not supported; known: {known}")
    return hyper


def take_trunk(
    file: GGUFFile, arch: str, tensors: Tensors, hyper: Hyper, pairing: Pairing, *, biases: bool, norms: bool
) -> Trunk:
    """Everything but the feed-forwards."""
    shape = hyper.vocabulary, hyper.width
    rope = read_rope(file, arch, tensors, pairing, hyper.head_size, hyper.context)
    embedding = tensors.take("token_embd.weight", *shape)
    return Trunk(
        hyper,
        embedding,
        attentions=tuple(_take_attention(tensors, hyper, rope, i, biases, norms) for i in range(hyper.layers)),
        last_norm=tensors.take("output_norm.weight", hyper.width),
        head=tensors.take("output.weight", *shape) if "output.weight" in tensors else embedding,
    )


def _take_attention(tensors: Tensors, hyper: Hyper, rope: Rope, i: int, biases: bool, norms: bool) -> SelfAttention:
    at, width, size = f"blk.{i}.attn", hyper.width, hyper.head_size
    inner, kv = hyper.heads * size, hyper.kv_heads * size

    def bias(name: str, length: int, wanted: bool) -> Weight | None:
        full = f"{at}_{name}.bias"
        return tensors.take(full, length) if wanted or full in tensors else None

    return SelfAttention(
        norm=tensors.take(f"{at}_norm.weight", width),
        q=tensors.take(f"{at}_q.weight", inner, width),
        k=tensors.take(f"{at}_k.weight", kv, width),
        v=tensors.take(f"{at}_v.weight", kv, width),
        biases=(bias("q", inner, biases), bias("k", kv, biases), bias("v", kv, biases)),
        output=tensors.take(f"{at}_output.weight", width, inner),
        output_bias=bias("output", width, False),
        cache=Cache(f"blk.{i}.kv", hyper.kv_heads, size),
        how=Attention(
            hyper.heads,
            rope,
            scale=size**-0.5,
            window=hyper.window,
            norms=HeadNorms(
                hyper.eps, tensors.take(f"{at}_q_norm.weight", size), tensors.take(f"{at}_k_norm.weight", size)
            )
            if norms
            else None,
        ),
    )


def take_feed(tensors: Tensors, at: str, norm: Weight, inner: int) -> FeedForward:
    """A feed-forward of that width behind a norm."""
    [width] = norm.shape
    gate, up = f"{at}_gate.weight", f"{at}_up.weight"
    return FeedForward(
        norm=norm,
        gates=tensors.alternate(f"{at}_gate_up", inner, width, gate, up)
        if tensors.same_format(gate, up)
        else (tensors.take(gate, inner, width), tensors.take(up, inner, width)),
        down=tensors.take(f"{at}_down.weight", width, inner),
    )
