"""Transformers with mixtures of experts: a `Form`, and the differences between the mixtures of families."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..gguf.file import GGUFFile
from ..ops.vocabulary import AnyNorm, Cache, Glu, LayerNorm, Ops, Rms, Scores, Tensor, Xielu
from .dense import Attentions, DenseFile, Form, build, heads_after
from .experts import SHARED, ExpertSizes, Mixture, mixture, read_experts, take_adjugates, take_mixture
from .heads import Head, read_head, take_head
from .layered import Ends, FileHead, normed
from .transformer import (
    AttentionModel,
    FeedForward,
    SelfAttention,
    Transformer,
    feed_forward,
    self_attention,
    write_keys,
)


@dataclass(frozen=True)
class ExpertForm:
    """The differences between the mixtures of families."""

    optional: bool = False  # files may have no experts; their feed-forwards are dense
    scores: Scores = "softmax"  # used if the file does not specify it
    normalise: bool | None = None  # shares are normalised; None: as in the file
    then: Glu = "silu"
    thens: Sequence[Glu] = ()  # activation of each layer, in place of `then`
    glu: bool = True  # an expert has a gate
    biases: bool = False  # the router and all matrices have biases
    shared: bool | None = False  # there is a shared expert; None if the file decides
    shared_suffix: str = SHARED  # suffix of the shared expert's tensors
    scales_input: bool = False  # shares multiply the inputs of experts, not their outputs
    by_router: bool = False  # layers with a router have experts; metadata is ignored
    shared_scale: float = 1.0  # scale of the sum of chosen and shared experts, if there is a shared one
    routed_first: bool = False  # routers read the input of their layer, without a norm
    router_cap: float = 0.0  # limit of the router's logits; 0 is none
    adjugates: bool = False  # neighbouring experts share a smaller one
    dense: str | None = None  # norm of a dense feed-forward that also reads the output of attention; added first


Forms = tuple[Form, ExpertForm]


@dataclass(frozen=True)
class Experts:
    """Parameters of a feed-forward of experts."""

    norm: AnyNorm | None
    mixture: Mixture
    after: Rms | None = None  # norm of their summed output
    scale: float = 1.0  # scale of the summed output
    after_scale: float = 1.0  # multiplies the normed output
    routed_first: bool = False
    dense: FeedForward | None = None
    total: AnyNorm | None = None  # norm of the returned sum


def expert_feed(g: Ops[Tensor], p: Experts, x: Tensor, add: Tensor, routed: Tensor | None = None) -> Tensor:
    """total(add + after_scale · after(scale · mixture(norm(x)))); the router reads `routed` if it is given"""
    norm = None
    if isinstance(p.norm, LayerNorm):
        x = normed(g, x, p.norm)
    else:
        norm = p.norm
    if p.after is None:
        return normed(g, mixture(g, p.mixture, x, norm, add=add, scale=p.scale, routed=routed), p.total)
    y = mixture(g, p.mixture, x, norm, add=None, scale=p.scale, routed=routed)
    y = g.rms_norm(y, p.after.weight, p.after.eps, add=add, scale=p.after_scale)
    return normed(g, y, p.total)


@dataclass(frozen=True)
class MixtureTransformer(AttentionModel):
    """A model with a mixture of experts in most layers."""

    feeds: tuple[FeedForward | Experts, ...]

    def feed(self, g: Ops[Tensor], i: int, x: Tensor, y: Tensor) -> Tensor:
        p, read = self.feeds[i], x if self.parallel else y
        if isinstance(p, FeedForward):
            return feed_forward(g, p, read, y)
        if p.dense is not None:
            y = feed_forward(g, p.dense, y)
        return expert_feed(g, p, read, y, x if p.routed_first else None)


def build_either(
    source: DenseFile, form: Form, experts: ExpertForm, attentions: Attentions | None = None
) -> Transformer | MixtureTransformer:
    """The model that a file and its forms describe, with experts or, where they are optional, without."""
    if experts.optional and not source.file.int(f"{source.arch}.expert_count", default=0):
        return build(source, form, attentions)
    return build_mixtures(source, form, experts, attentions)


def build_mixtures(
    source: DenseFile, form: Form, experts: ExpertForm, attentions: Attentions | None = None
) -> MixtureTransformer:
    """Builds the model of a file and its forms. `attentions` replaces the attention of some layers.

    The file states how many first layers are dense. Each `interleave_moe_layer_step`-th of the others has experts.
    """
    ends, attending, feed = source.ends(form), source.attentions(form), _feeds(source, form, experts)
    if attentions is not None:
        attending = tuple(attentions(i, attention) for i, attention in enumerate(attending))
    feeds = tuple(feed(i) for i in range(source.hyper.layers))
    source.tensors.refuse_the_rest()
    return MixtureTransformer(ends, tuple(source.tensors.taken), attending, form.parallel, feeds)


def _feeds(source: DenseFile, form: Form, experts: ExpertForm) -> Callable[[int], FeedForward | Experts]:
    """Takes the feed-forward of a layer."""
    file, arch, hyper = source.file, source.arch, source.hyper
    if not file.int(f"{arch}.expert_shared_count", low=0, high=64, default=1):
        experts = replace(experts, shared=False)
    sizes = read_experts(file, arch, hyper.width, scores=experts.scores, normalise=experts.normalise)
    leading = file.int(f"{arch}.leading_dense_block_count", low=0, high=hyper.layers, default=0)
    step = file.int(f"{arch}.interleave_moe_layer_step", low=1, high=hyper.layers, default=1)

    def feed(i: int) -> FeedForward | Experts:
        there = i >= leading and (i + 1) % step == 0
        if experts.by_router:
            there = f"blk.{i}.ffn_gate_inp.weight" in source.tensors
        return _take_mixture(source, form, experts, sizes, i) if there else source.feed(form, i)

    return feed


@dataclass(frozen=True)
class DraftHeadLayer:
    """The layer of a head: attention and a feed-forward."""

    attention: SelfAttention
    feed: FeedForward | Experts

    @property
    def caches(self) -> Sequence[Cache]:
        return (self.attention.cache,)

    def write(self, g: Ops[Tensor], x: Tensor) -> None:
        write_keys(g, self.attention, x)

    def __call__(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        x = self_attention(g, self.attention, x)
        return feed_forward(g, self.feed, x) if isinstance(self.feed, FeedForward) else expert_feed(g, self.feed, x, x)


def find_head(file: GGUFFile, arch: str, ends: Ends, forms: Callable[[DenseFile], Forms]) -> FileHead | None:
    """The heads of a file whose layers have these forms; None if there are none, or the form does not support them."""
    count = heads_after(file, arch)
    layers = file.int(f"{arch}.block_count") - count

    def take(index: int) -> Head:
        source = DenseFile(file, arch, heads=index - layers + 1)
        form, experts = forms(source)
        windows = form.windows or [source.hyper.window] * source.hyper.layers
        ropes = form.ropes or source.ropes(source.rope(form.pairing), windows)
        attention = source.attention(form, index, ropes[index], windows[index])
        block = DraftHeadLayer(attention, _feeds(source, form, experts)(index))
        normed_rows = form.heads_read == "normed"
        return take_head(source.tensors, index, ends, source.hyper.eps, block, normed_rows=normed_rows)

    return read_head(file, layers, count, take)


def _take_mixture(source: DenseFile, form: Form, experts: ExpertForm, sizes: ExpertSizes, i: int) -> Experts:
    tensors = source.tensors
    there = f"blk.{i}.ffn_up{experts.shared_suffix}.weight" in tensors
    shared_then = form.thens[i] if form.thens else None
    assert not isinstance(shared_then, Xielu), "no shared expert has it"
    found = take_mixture(
        tensors,
        sizes,
        i,
        then=experts.thens[i] if experts.thens else experts.then,
        shared_then=shared_then,
        gated=experts.glu,
        biases=experts.biases,
        shared=there if experts.shared is None else experts.shared,
        shared_suffix=experts.shared_suffix,
        scales_input=experts.scales_input,
        router_cap=experts.router_cap,
    )
    if experts.adjugates:
        found = replace(found, adjugates=take_adjugates(source.file, tensors, source.arch, sizes, i))
    scale, after = experts.shared_scale if found.shared else 1.0, source.after(form, 1, i)
    before = form.norms[0], experts.dense
    norm, total = form.norms[1], form.sums[1]
    return Experts(
        source.norm(form, f"blk.{i}.{norm}") if norm else None,
        found,
        after,
        scale=scale if after else scale * form.branch_scale,
        after_scale=form.branch_scale,
        routed_first=experts.routed_first,
        dense=source.feed(replace(form, norms=before), i) if experts.dense else None,
        total=source.norm(form, f"blk.{i}.{total}") if total else None,
    )
