"""Transformers with mixtures of experts: a `Form`, and what sets the mixtures of a family apart."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..ops.vocabulary import Glu, Ops, Rms, Scores, Tensor
from .dense import DenseFile, Form
from .experts import ExpertSizes, Mixture, mixture, read_experts, take_mixture
from .transformer import FeedForward, OnTrunk, SelfAttention, feed_forward


@dataclass(frozen=True)
class ExpertForm:
    """What sets the mixtures of a family apart."""

    scores: Scores = "softmax"  # where the file does not say
    normalise: bool | None = None  # whether shares are; None is what the file says
    then: Glu = "silu"
    biases: bool = False  # of the router and of all matrices
    shared: bool | None = False  # whether there is a shared expert; None where the file has one
    scales_input: bool = False  # whether shares multiply what experts read


@dataclass(frozen=True)
class MixtureTransformer(OnTrunk):
    """A model: a trunk with a mixture of experts in most layers."""

    feeds: tuple[FeedForward | tuple[Rms, Mixture], ...]  # each mixture behind a norm
    branch_scale: float  # of what a mixture adds

    def feed(self, g: Ops[Tensor], i: int, x: Tensor) -> Tensor:
        p = self.feeds[i]
        if isinstance(p, FeedForward):
            return feed_forward(g, p, x)
        norm, experts = p
        return mixture(g, experts, x, norm, add=x, scale=self.branch_scale)


Attentions = Callable[[int, SelfAttention], SelfAttention]


def build_mixtures(
    source: DenseFile, form: Form, experts: ExpertForm, attentions: Attentions | None = None
) -> MixtureTransformer:
    """The model that a file and its forms describe. `attentions` changes those of single layers.

    The first layers are dense, as many as the file says, and of the rest all but each `interleave_moe_layer_step`-th.
    """
    file, arch, hyper = source.file, source.arch, source.hyper
    trunk = source.trunk(form)
    if attentions is not None:
        changed = tuple(attentions(i, attention) for i, attention in enumerate(trunk.attentions))
        trunk = replace(trunk, attentions=changed)
    sizes = read_experts(file, arch, hyper.width, scores=experts.scores, normalise=experts.normalise)
    leading = file.int(f"{arch}.leading_dense_block_count", low=0, high=hyper.layers, default=0)
    step = file.int(f"{arch}.interleave_moe_layer_step", low=1, high=hyper.layers, default=1)
    feeds = tuple(
        _take_mixture(source, form, experts, sizes, i) if i >= leading and (i + 1) % step == 0 else source.feed(form, i)
        for i in range(hyper.layers)
    )
    source.tensors.refuse_the_rest()
    return MixtureTransformer(trunk, tuple(source.tensors.taken), feeds, form.branch_scale)


def _take_mixture(
    source: DenseFile, form: Form, experts: ExpertForm, sizes: ExpertSizes, i: int
) -> tuple[Rms, Mixture]:
    tensors, hyper = source.tensors, source.hyper
    there = f"blk.{i}.ffn_up_shexp.weight" in tensors
    found = take_mixture(
        tensors,
        sizes,
        i,
        then=experts.then,
        biases=experts.biases,
        shared=there if experts.shared is None else experts.shared,
        scales_input=experts.scales_input,
    )
    return Rms(tensors.take(f"blk.{i}.{form.norms[1]}.weight", hyper.width), hyper.eps), found
