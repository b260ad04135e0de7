"""DeepSeek-V2 and V3, GLM-4.7-Flash, Mistral Large 3 and related models: latent attention, and mixtures of experts.

The first layers are dense. MiniCPM 3 has additional scales, and PLM a feed-forward without a gate. In DeepSeek-V3.2,
GLM-5 and dots3-note, an indexer chooses the keys that a row sees; other layers of dots3-note have windows. Hy4 has
indexers, too, several residual streams, and attention sinks.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..gguf.file import GGUFFile
from ..ops.vocabulary import ClampedSwiglu, KeyIndex, Ops, Pairing, Rms, Rope, Scores, Temperature, Tensor
from .dense_families import BASE_WIDTH, DEPTH, EMBEDDING
from .experts import ExpertSizes
from .hybrid import AttendsToLatents, Block, GatedFeed, Hybrid, HybridFile
from .hyper_connections import Streamed, take_mixes
from .latent import INDEX_EPS, STEP, IndexSizes, LatentScores, LatentSizes, chosen_self_attention, take_latent_attention
from .rope import BASE, MAGNITUDE
from .tensors import LONGEST_CONTEXT
from .transformer import FeedForward, Output

# The first files of GLM-4.7-Flash do not specify the routing. With softmax, the model repeats itself.
FLASH_LAYERS, FLASH_VOCABULARY = (47, 48), 154880
SHARING_CONTEXT = 1 << 20  # the context of GLM-5.2, whose layers share indexers; GLM-5 and 5.1 have shorter ones


@dataclass(frozen=True)
class LatentForm:
    """The differences between families with latent attention."""

    pairing: Pairing = "normal"  # pairs of numbers that rotate together
    scaled: bool = False  # True if embedding, branches and logits are scaled, as in the first MiniCPM
    glu: bool = True  # True if a feed-forward has a gate; otherwise it uses relu²
    index: Pairing | None = None  # how an indexer rotates pairs; None without an indexer
    routing: Scores = "softmax"  # for files without this key
    windows: bool = False  # True if some layers have windows and sizes of their own, and all have gates and normed keys
    streams: bool = False  # True if there are several residual streams, sinks, gates, and clamped experts


FORMS = {
    "deepseek2": LatentForm(),
    "deepseek32": LatentForm(index="neox"),
    "dots3note": LatentForm(index="neox", routing="sigmoid", windows=True),
    "glm-dsa": LatentForm(index="normal", routing="sigmoid"),
    "hy_v4": LatentForm(index="normal", routing="sigmoid", streams=True),
    "minicpm3": LatentForm(pairing="neox", scaled=True),
    "mistral4": LatentForm(),
    "plm": LatentForm(glu=False),
}


@dataclass(frozen=True)
class Indexed(Hybrid):
    """A model with an indexer, which chooses the keys of each row in the same layer or in an earlier one."""

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - layers see x alone
        chosen = None
        for i, (attention, *others) in enumerate(self.blocks):
            assert isinstance(attention, AttendsToLatents), "all layers attend to latents"
            with g.layer(i):
                x, chosen = chosen_self_attention(g, attention.p, x, x, chosen)
                for block in others:
                    x = block(g, x, x, self.eps)
        return x


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    form, layers, width = FORMS[source.arch], source.sizes.layers, source.sizes.width
    branch = DEPTH / math.sqrt(layers) if form.scaled else 1.0
    latent = replace(_read_sizes(source), gated=form.streams, sinks=form.streams)
    scores = _read_scores(source, latent)
    index = _read_index(source, latent, scores.rope)
    kinds = _read_windows(source, latent, scores) if form.windows else [(latent, scores)] * layers
    attentions = [
        AttendsToLatents(take_latent_attention(file, source.tensors, *kinds[i], i, scale=branch, index=index[i]))
        for i in range(layers)
    ]
    blocks = list(zip(attentions, _take_feeds(source, branch), strict=True))

    def of_head(head: HybridFile, i: int) -> Sequence[Block]:
        """The form of a draft head of GLM-4.7-Flash and DeepSeek-V3, whose feed-forward has experts."""
        attention = AttendsToLatents(take_latent_attention(file, head.tensors, latent, scores, i))
        experts, shared = _read_experts(head)
        return attention, head.experts(i, experts, shared=shared)

    if form.streams:
        magnitude = file.float(f"{source.arch}.hyper_connection.magnitude", 1e-3, 1e3)
        mixes, last = take_mixes(source, magnitude)
        return source.model(blocks, kind=Streamed, mixes=mixes, last=last)
    if not form.scaled:
        return source.model(blocks, head_layer=of_head, kind=Indexed if form.index else Hybrid)
    return source.model(blocks, embedding_scale=EMBEDDING, logit_scale=BASE_WIDTH / width)


def _read_sizes(source: HybridFile) -> LatentSizes:
    """The sizes. Queries are of low rank if the tensors show it: some files lack the key."""
    tensors, at = source.tensors, f"{source.arch}.attention"
    rotary, older = source.integer("rope.dimension_count", 2), f"{at}.key_length_mla" not in source.file.metadata
    ending = "" if older else "_mla"  # the keys of older files give the lengths of whole heads
    key = source.integer(f"attention.key_length{ending}")
    default = source.sizes.width // source.heads if older else None  # files of MiniCPM 3 lack the key
    value = source.integer(f"attention.value_length{ending}", default=default)
    if key <= rotary:
        raise tensors.bad(f"metadata key '{at}.key_length'", str(key), f"more than the {rotary} dims that rotate")
    return LatentSizes(
        width=source.sizes.width,
        heads=source.by_layer("attention.head_count")[0],
        latent=source.integer("attention.kv_lora_rank", 1, 1 << 14),
        nope=key - rotary,
        rotary=rotary,
        value=value,
        q_rank=tensors.dimension("blk.0.attn_q_a.weight", 0) if "blk.0.attn_q_a.weight" in tensors else 0,
        eps=source.sizes.eps,
    )


def _read_windows(
    source: HybridFile, latent: LatentSizes, scores: LatentScores
) -> list[tuple[LatentSizes, LatentScores]]:
    """The sizes and scores of each layer, if layers with windows have their own."""
    at, tensors = f"{source.arch}.attention", source.tensors
    key = source.integer("attention.key_length_mla_swa")
    if key <= latent.rotary or scores.rope is None:
        expected = f"more than the {latent.rotary} dims that rotate"
        raise tensors.bad(f"metadata key '{at}.key_length_mla_swa'", str(key), expected)
    base = source.file.float(f"{source.arch}.rope.freq_base_swa", *BASE)
    near = LatentScores(replace(scores.rope, base=base), key**-0.5, scores.temperature)
    far = replace(latent, gated=True, key_norm=True)
    sizes = replace(
        far,
        latent=source.integer("attention.kv_lora_rank_swa", 1, 1 << 14),
        nope=key - latent.rotary,
        value=source.integer("attention.value_length_mla_swa"),
        window=source.integer("attention.sliding_window", 1, LONGEST_CONTEXT),
    )
    heads = source.by_layer("attention.head_count")
    windows = source.flags("attention.sliding_window_pattern")
    return [
        (replace(sizes, heads=count), near) if window else (replace(far, heads=count), scores)
        for count, window in zip(heads, windows, strict=True)
    ]


def _read_index(source: HybridFile, latent: LatentSizes, rope: Rope | None) -> list[IndexSizes | None]:
    """The indexer of each layer. A layer without one uses the keys that an earlier layer chose."""
    form, layers, tensors, at = FORMS[source.arch], source.sizes.layers, source.tensors, f"{source.arch}.attention"
    pairing = form.index
    if pairing is None or rope is None or (form.streams and f"{at}.indexer.top_k" not in source.file.metadata):
        return [None] * layers
    if not latent.q_rank:
        raise tensors.bad("tensor 'blk.0.attn_q_a.weight'", "none", "queries of low rank, for the indexer")
    size = source.integer("attention.indexer.key_length", 1, 512)
    if size % STEP or size < rope.dims:
        expected = f"a multiple of {STEP} from {rope.dims} to 512"
        raise tensors.bad(f"metadata key '{at}.indexer.key_length'", str(size), expected)
    count = min(source.integer("attention.indexer.top_k", 1, 1 << 16), source.sizes.context)
    heads = source.integer("attention.indexer.head_count", 1, 1 << 10)
    how = KeyIndex(heads, replace(rope, pairing=pairing), count, last=form.streams)
    sizes = IndexSizes(size, how, source.sizes.eps if form.streams else INDEX_EPS)
    indexed = _indexed_layers(source)
    shared = tuple(f"blk.{i}.indexer." for i, own in enumerate(indexed) if not own)
    tensors.skip(*(name for name in source.file.tensors if name.startswith(shared)))  # some files have copies there
    return [sizes if own else None for own in indexed]


def _indexed_layers(source: HybridFile) -> list[bool]:
    """Whether each layer has an indexer. GLM-5.2, recognised by its context, has one in every fourth layer."""
    key, layers = f"{source.arch}.attention.indexer.types", source.sizes.layers
    if key not in source.file.metadata:
        shares = source.arch == "glm-dsa" and source.sizes.context >= SHARING_CONTEXT
        return [not shares or i < 2 or i % 4 == 2 for i in range(layers)]
    found = source.flags("attention.indexer.types")
    if not found[0]:
        raise source.tensors.bad(f"metadata key '{key}'", "false for the first layer", "true")
    return found


def _read_scores(source: HybridFile, sizes: LatentSizes) -> LatentScores:
    """Reads the parameters of attention scores, which all layers share."""
    rope, scale = _read_rope(source, sizes)
    warm = source.file.float(f"{source.arch}.attention.temperature_scale", 0.0, 1e2, default=0.0)
    context = source.sizes.context
    original = source.integer("rope.scaling.original_context_length", 1, LONGEST_CONTEXT, default=context)
    period = source.integer("attention.temperature_length", 1, LONGEST_CONTEXT, default=original)
    return LatentScores(rope, scale, Temperature(warm, period) if warm else None)


def _read_rope(source: HybridFile, sizes: LatentSizes) -> tuple[Rope, float]:
    """The RoPE, and the scale of scores. Here YaRN scales whole scores, not only their rotated part."""
    file, scaling = source.file, f"{source.arch}.rope.scaling"
    rope, scale = source.rope(FORMS[source.arch].pairing, sizes.rotary), (sizes.nope + sizes.rotary) ** -0.5
    if rope.yarn is None or not file.float(f"{scaling}.yarn_log_multiplier", default=0.0):
        return rope, scale
    growth = 1 + file.float(f"{scaling}.yarn_log_multiplier", 1e-4, 1.0) * math.log(1 / rope.scale)
    magnitude = file.float(f"{scaling}.attn_factor", *MAGNITUDE, default=1.0)
    return replace(rope, magnitude=magnitude), scale * growth**2


def _read_experts(source: HybridFile) -> tuple[ExpertSizes, bool]:
    """The sizes of mixtures, and whether one expert is shared."""
    sizes = source.sizes
    flash = sizes.layers in FLASH_LAYERS and sizes.vocabulary == FLASH_VOCABULARY
    experts = source.read_experts(scores="sigmoid" if flash else FORMS[source.arch].routing)
    return experts, source.integer("expert_shared_count", 0, 64, default=0) > 0


def _take_feeds(source: HybridFile, branch: float) -> Iterator[Block]:
    """Takes the feed-forward of each layer; the first layers are dense."""
    tensors, sizes, inner, experts = source.tensors, source.sizes, source.inner, None
    dense, shared = sizes.layers, False
    if source.integer("expert_count", 0, default=0):
        dense = source.integer("leading_dense_block_count", 0, source.integer("block_count"), default=0)
    if dense < sizes.layers:
        experts, shared = _read_experts(source)
    clamps = source.clamps("swiglu_clamp_exp", ClampedSwiglu(0.0)) if FORMS[source.arch].streams else ()
    for i in range(sizes.layers):
        if not FORMS[source.arch].glu:
            at, norm = f"blk.{i}.ffn", Rms(tensors.take(f"blk.{i}.ffn_norm.weight", sizes.width), sizes.eps)
            up = tensors.take(f"{at}_up.weight", inner, sizes.width)
            down = Output(tensors.take(f"{at}_down.weight", sizes.width, inner), scale=branch)
            yield GatedFeed(FeedForward(norm, up, "relu2", down))
        elif experts is None or i < dense:
            yield source.feed(i, inner, scale=branch)
        else:
            yield source.experts(i, experts, shared=shared, then=clamps[i] if clamps else "silu", shared_then="silu")
