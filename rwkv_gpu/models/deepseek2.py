"""DeepSeek-V2 and V3, GLM-4.7-Flash and their like: latent attention, and experts after some leading dense layers."""

import math
from dataclasses import dataclass, replace

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Cache, Gating, Ops, Rms, Rope, Scores, State, Tensor, Weight
from .latent import LatentSelfAttention, LatentSizes, latent_self_attention, take_latent_attention
from .rope import read_rope
from .tensors import EPS, LONGEST_CONTEXT, Tensors
from .transformer import FeedForward, feed_forward, take_feed

ARCH, MOST_USED = "deepseek2", 64  # of the experts, as a kernel keeps their logits in registers
GATINGS: dict[int, Scores] = {1: "softmax", 2: "sigmoid"}
# The first files of GLM-4.7-Flash do not say how it routes; with softmax it repeats itself.
FLASH_LAYERS, FLASH_VOCABULARY = (47, 48), 154880


@dataclass(frozen=True)
class Hyper:
    """The sizes of a model."""

    layers: int
    width: int  # D
    inner: int  # of the feed-forward of dense layers
    dense: int  # layers that have one, the first
    vocabulary: int  # V
    eps: float
    context: int  # positions it was trained on


@dataclass(frozen=True)
class Mixture:
    """Parameters of the experts of one layer."""

    norm: Weight  # [D]
    router: Weight  # [E, D]
    gating: Gating
    gate: Weight  # [E, inner, D]
    up: Weight  # [E, inner, D]
    down: Weight  # [E, D, inner]
    shared: FeedForward | None  # that every row takes, behind the same norm


@dataclass(frozen=True)
class DeepSeek2:
    """A model: its sizes and parameters, in the order of their use."""

    hyper: Hyper
    embedding: Weight  # [V, D]
    layers: tuple[tuple[LatentSelfAttention, FeedForward | Mixture], ...]
    last_norm: Weight  # [D]
    head: Weight  # [V, D]
    weights: tuple[Weight, ...]

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return self.hyper.vocabulary

    @property
    def states(self) -> list[State]:
        """None: all that a sequence needs is in its pages."""
        return []

    @property
    def caches(self) -> list[Cache]:
        """Latents, layer by layer."""
        return [attention.cache for attention, _ in self.layers]

    @property
    def context(self) -> int:
        """Positions it was trained on."""
        return self.hyper.context

    def forward(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The logits of the requested rows, [R, V]"""
        return g.linear(self._trunk(g, ids), self.head, norm=Rms(self.last_norm, self.hyper.eps))

    def hidden(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The input of the head for these rows, [R, D]"""
        return g.rms_norm(self._trunk(g, ids), self.last_norm, self.hyper.eps)

    def _trunk(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The requested rows after all layers, [R, D]"""
        x, eps = g.embed(self.embedding, ids), self.hyper.eps  # [T, D]
        for i, (attention, feed) in enumerate(self.layers):
            with g.layer(i):
                x = latent_self_attention(g, attention, x, eps)
                x = mixture(g, feed, x, eps) if isinstance(feed, Mixture) else feed_forward(g, feed, x, eps)
        return g.pick(x)


def mixture(g: Ops[Tensor], p: Mixture, x: Tensor, eps: float) -> Tensor:
    """x + shared(h) + sum of share_e · W_down,e · (silu(W_gate,e h) · W_up,e h) over the experts e of h = norm(x)"""
    norm = Rms(p.norm, eps)
    y = feed_forward(g, p.shared, x, eps) if p.shared else x
    routing = g.route(x, p.router, p.gating, norm=norm)
    inner = g.expert_glu(x, p.gate, p.up, routing, "silu", norm=norm)  # [T, used, inner]
    return g.expert_sum(inner, p.down, routing, add=y)


def load(file: GGUFFile) -> DeepSeek2:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    hyper = _read_hyper(file, tensors)
    sizes = _read_sizes(file, tensors, hyper)
    rope, scale = _read_rope(file, tensors, hyper, sizes)
    shape = hyper.vocabulary, hyper.width
    embedding = tensors.take("token_embd.weight", *shape)
    layers = tuple(
        (
            take_latent_attention(file, tensors, sizes, rope, scale, i),
            _take_feed(file, tensors, hyper, i),
        )
        for i in range(hyper.layers)
    )
    last_norm = tensors.take("output_norm.weight", hyper.width)
    head = tensors.take("output.weight", *shape) if "output.weight" in tensors else embedding
    tensors.skip_blocks(range(hyper.layers, file.int(f"{ARCH}.block_count")))
    tensors.refuse_the_rest()
    return DeepSeek2(hyper, embedding, layers, last_norm, head, tuple(tensors.taken))


def _read_hyper(file: GGUFFile, tensors: Tensors) -> Hyper:
    blocks = file.int(f"{ARCH}.block_count", low=1, high=1024)
    predicting = file.int(f"{ARCH}.nextn_predict_layers", low=0, high=blocks - 1, default=0)  # blocks, the last
    layers, experts = blocks - predicting, file.int(f"{ARCH}.expert_count", low=0, high=1 << 12, default=0)
    return Hyper(
        layers=layers,
        width=file.int(f"{ARCH}.embedding_length", low=1, high=1 << 16),
        inner=file.int(f"{ARCH}.feed_forward_length", low=1, high=1 << 20),
        dense=file.int(f"{ARCH}.leading_dense_block_count", low=0, high=blocks, default=0) if experts else layers,
        vocabulary=tensors.dimension("token_embd.weight", 0),
        eps=file.float(f"{ARCH}.attention.layer_norm_rms_epsilon", *EPS),
        context=file.int(f"{ARCH}.context_length", low=1, high=LONGEST_CONTEXT),
    )


def _read_sizes(file: GGUFFile, tensors: Tensors, hyper: Hyper) -> LatentSizes:
    """Queries are of low rank where the tensors say so: not every file has the key."""
    at = f"{ARCH}.attention"
    latent = file.int(f"{at}.kv_lora_rank", low=1, high=1 << 14)
    rotary = file.int(f"{ARCH}.rope.dimension_count", low=2, high=1 << 12)
    older = f"{at}.key_length_mla" not in file.metadata  # then the lengths are those of heads
    key, value = (file.int(f"{at}.{k}_length{'' if older else '_mla'}", low=1, high=1 << 12) for k in ("key", "value"))
    if key <= rotary:
        raise tensors.bad(f"metadata key '{at}.key_length'", str(key), f"more than the {rotary} dims that rotate")
    return LatentSizes(
        width=hyper.width,
        heads=file.int(f"{at}.head_count", low=1, high=1 << 12),
        latent=latent,
        nope=key - rotary,
        rotary=rotary,
        value=value,
        q_rank=tensors.dimension("blk.0.attn_q_a.weight", 0) if "blk.0.attn_q_a.weight" in tensors else 0,
        eps=hyper.eps,
    )


def _read_rope(file: GGUFFile, tensors: Tensors, hyper: Hyper, sizes: LatentSizes) -> tuple[Rope, float]:
    """The rotation, and the scale of the scores: here YaRN scales whole scores, in place of what rotates."""
    rope = read_rope(file, ARCH, tensors, "normal", sizes.rotary, hyper.context)
    scale = (sizes.nope + sizes.rotary) ** -0.5
    multiplier = f"{ARCH}.rope.scaling.yarn_log_multiplier"
    if rope.yarn is None or not file.float(multiplier, default=0.0):
        return rope, scale
    magnitude = 1 + file.float(multiplier, 1e-4, 1.0) * math.log(1 / rope.scale)
    return replace(rope, magnitude=1.0), scale * magnitude**2


def _read_gating(file: GGUFFile, tensors: Tensors, hyper: Hyper, experts: int, i: int) -> Gating:
    flash = hyper.layers in FLASH_LAYERS and hyper.vocabulary == FLASH_VOCABULARY
    number = file.int(f"{ARCH}.expert_gating_func", low=0, high=100, default=0) or (2 if flash else 1)
    if number not in GATINGS:
        known = ", ".join(f"{one} ({name})" for one, name in GATINGS.items())
        raise UnsupportedModel(f"{file.path}: it routes by function {number}, which is not supported; known: {known}")
    groups = file.int(f"{ARCH}.expert_group_count", low=0, high=experts, default=0) or 1
    bias = f"blk.{i}.exp_probs_b.bias"
    if experts % groups:
        raise tensors.bad(f"metadata key '{ARCH}.expert_group_count'", str(groups), f"a divisor of {experts} experts")
    return Gating(
        used=file.int(f"{ARCH}.expert_used_count", low=1, high=min(experts, MOST_USED)),
        scores=GATINGS[number],
        normalise=file.bool(f"{ARCH}.expert_weights_norm", default=False),
        scale=file.float(f"{ARCH}.expert_weights_scale", 0.0, 1e3, default=1.0) or 1.0,
        groups=groups,
        groups_used=file.int(f"{ARCH}.expert_group_used_count", low=0, high=groups, default=0) or groups,
        selection_bias=tensors.take(bias, experts) if bias in tensors else None,
    )


def _take_feed(file: GGUFFile, tensors: Tensors, hyper: Hyper, i: int) -> FeedForward | Mixture:
    at, width = f"blk.{i}.ffn", hyper.width
    norm = tensors.take(f"{at}_norm.weight", width)
    if i < hyper.dense:
        return take_feed(tensors, at, norm, hyper.inner)
    experts = file.int(f"{ARCH}.expert_count", low=1, high=1 << 12)
    inner = file.int(f"{ARCH}.expert_feed_forward_length", low=1, high=1 << 20)
    shared = file.int(f"{ARCH}.expert_shared_count", low=0, high=64, default=0) * inner
    return Mixture(
        norm=norm,
        router=tensors.take(f"{at}_gate_inp.weight", experts, width),
        gating=_read_gating(file, tensors, hyper, experts, i),
        gate=tensors.take(f"{at}_gate_exps.weight", experts, inner, width),
        up=tensors.take(f"{at}_up_exps.weight", experts, inner, width),
        down=tensors.take(f"{at}_down_exps.weight", experts, width, inner),
        shared=take_feed(tensors, at, norm, shared, suffix="_shexp") if shared else None,
    )
