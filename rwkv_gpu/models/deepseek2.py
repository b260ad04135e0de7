"""DeepSeek-V2 and V3, GLM-4.7-Flash, Mistral Large 3 and their like: latent attention, and experts after some leading
dense layers. MiniCPM 3 has scales, and PLM a feed-forward without a gate.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Cache, Ops, Pairing, Rms, Rope, Temperature, Tensor
from .dense import take_feed
from .dense_families import BASE_WIDTH, DEPTH, EMBEDDING
from .experts import read_experts, take_mixture
from .latent import LatentScores, LatentSelfAttention, LatentSizes, latent_self_attention, take_latent_attention
from .layered import Ends, Layered
from .mixtures import Experts, expert_feed
from .rope import MAGNITUDE, read_rope
from .tensors import EPS, LONGEST_CONTEXT, Tensors
from .transformer import FeedForward, Output, feed_forward

# The first files of GLM-4.7-Flash do not say how it routes; with softmax it repeats itself.
FLASH_LAYERS, FLASH_VOCABULARY = (47, 48), 154880


@dataclass(frozen=True)
class LatentForm:
    """What sets a family apart."""

    pairing: Pairing = "normal"  # of what turns
    scaled: bool = False  # embedding, branches and logits, as in the first MiniCPM
    glu: bool = True  # whether a feed-forward has a gate; else it is one of relu²


FORMS = {
    "deepseek2": LatentForm(),
    "minicpm3": LatentForm(pairing="neox", scaled=True),
    "mistral4": LatentForm(),
    "plm": LatentForm(glu=False),
}


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
class DeepSeek2(Layered):
    """A model: latent attention, and a feed-forward or experts, in each layer."""

    attentions: tuple[LatentSelfAttention, ...]
    feeds: tuple[FeedForward | Experts, ...]

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - layers see x alone
        for i, (attention, p) in enumerate(zip(self.attentions, self.feeds, strict=True)):
            with g.layer(i):
                x = latent_self_attention(g, attention, x)
                x = feed_forward(g, p, x) if isinstance(p, FeedForward) else expert_feed(g, p, x, x)
        return x

    @property
    def caches(self) -> list[Cache]:
        """Latents, layer by layer."""
        return [p.cache for p in self.attentions]


def load(file: GGUFFile) -> DeepSeek2:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    arch = file.str("general.architecture")
    tensors, form = Tensors(file), FORMS[arch]
    hyper = _read_hyper(file, arch, tensors)
    branch = DEPTH / math.sqrt(hyper.layers) if form.scaled else 1.0
    sizes = _read_sizes(file, arch, tensors, hyper)
    how = _read_attention(file, arch, tensors, hyper, sizes)
    shape = hyper.vocabulary, hyper.width
    embedding = tensors.take("token_embd.weight", *shape)
    attentions = tuple(take_latent_attention(file, tensors, sizes, how, i, scale=branch) for i in range(hyper.layers))
    feeds = tuple(_take_feeds(file, arch, tensors, hyper, branch))
    last_norm = Rms(tensors.take("output_norm.weight", hyper.width), hyper.eps)
    head = tensors.find("output.weight", *shape) or embedding
    tensors.skip_blocks(range(hyper.layers, file.int(f"{arch}.block_count")))
    tensors.refuse_the_rest()
    ends = Ends(embedding, last_norm, head, hyper.context)
    if form.scaled:
        ends = replace(ends, embedding_scale=EMBEDDING, logit_scale=BASE_WIDTH / hyper.width)
    return DeepSeek2(ends, tuple(tensors.taken), attentions, feeds)


def _read_hyper(file: GGUFFile, arch: str, tensors: Tensors) -> Hyper:
    blocks = file.int(f"{arch}.block_count", low=1, high=1024)
    predicting = file.int(f"{arch}.nextn_predict_layers", low=0, high=blocks - 1, default=0)  # blocks, the last
    layers, experts = blocks - predicting, file.int(f"{arch}.expert_count", low=0, high=1 << 12, default=0)
    return Hyper(
        layers=layers,
        width=file.int(f"{arch}.embedding_length", low=1, high=1 << 16),
        inner=file.int(f"{arch}.feed_forward_length", low=1, high=1 << 20),
        dense=file.int(f"{arch}.leading_dense_block_count", low=0, high=blocks, default=0) if experts else layers,
        vocabulary=tensors.dimension("token_embd.weight", 0),
        eps=file.float(f"{arch}.attention.layer_norm_rms_epsilon", *EPS),
        context=file.int(f"{arch}.context_length", low=1, high=LONGEST_CONTEXT),
    )


def _read_sizes(file: GGUFFile, arch: str, tensors: Tensors, hyper: Hyper) -> LatentSizes:
    """Queries are of low rank where the tensors say so: not every file has the key."""
    at = f"{arch}.attention"
    latent = file.int(f"{at}.kv_lora_rank", low=1, high=1 << 14)
    rotary = file.int(f"{arch}.rope.dimension_count", low=2, high=1 << 12)
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


def _read_attention(file: GGUFFile, arch: str, tensors: Tensors, hyper: Hyper, sizes: LatentSizes) -> LatentScores:
    """What all layers share of their scores."""
    rope, scale = _read_rope(file, arch, tensors, hyper, sizes)
    warm = file.float(f"{arch}.attention.temperature_scale", 0.0, 1e2, default=0.0)
    original = file.int(f"{arch}.rope.scaling.original_context_length", 1, LONGEST_CONTEXT, default=hyper.context)
    period = file.int(f"{arch}.attention.temperature_length", low=1, high=LONGEST_CONTEXT, default=original)
    return LatentScores(rope, scale, Temperature(warm, period) if warm else None)


def _read_rope(file: GGUFFile, arch: str, tensors: Tensors, hyper: Hyper, sizes: LatentSizes) -> tuple[Rope, float]:
    """The rotation, and the scale of the scores: here YaRN scales whole scores, in place of what rotates."""
    rope = read_rope(file, arch, tensors, FORMS[arch].pairing, sizes.rotary, hyper.context)
    scale = (sizes.nope + sizes.rotary) ** -0.5
    multiplier = f"{arch}.rope.scaling.yarn_log_multiplier"
    if rope.yarn is None or not file.float(multiplier, default=0.0):
        return rope, scale
    growth = 1 + file.float(multiplier, 1e-4, 1.0) * math.log(1 / rope.scale)
    magnitude = file.float(f"{arch}.rope.scaling.attn_factor", *MAGNITUDE, default=1.0)
    return replace(rope, magnitude=magnitude), scale * growth**2


def _take_feeds(
    file: GGUFFile, arch: str, tensors: Tensors, hyper: Hyper, branch: float
) -> Iterator[FeedForward | Experts]:
    """Of each layer: the first are dense."""
    sizes = None
    if hyper.dense < hyper.layers:
        flash = hyper.layers in FLASH_LAYERS and hyper.vocabulary == FLASH_VOCABULARY
        sizes = read_experts(file, arch, hyper.width, scores="sigmoid" if flash else "softmax")
        shared = file.int(f"{arch}.expert_shared_count", low=0, high=64, default=0) > 0
    for i in range(hyper.layers):
        norm = Rms(tensors.take(f"blk.{i}.ffn_norm.weight", hyper.width), hyper.eps)
        at = f"blk.{i}.ffn"
        if not FORMS[arch].glu:
            up, down = tensors.take(f"{at}_up.weight", hyper.inner, hyper.width), f"{at}_down.weight"
            yield FeedForward(norm, up, "relu2", Output(tensors.take(down, hyper.width, hyper.inner), scale=branch))
        elif sizes is None or i < hyper.dense:
            plain = take_feed(tensors, at, norm, hyper.inner, hyper.width)
            yield replace(plain, output=replace(plain.output, scale=branch))
        else:
            yield Experts(norm, take_mixture(tensors, sizes, i, shared=shared))
