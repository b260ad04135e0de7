"""Talkie: every layer adds the embedding again; norms have no weights, and each query head has a gain."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..gguf.file import GGUFFile
from ..ops.vocabulary import HeadRows, Ops, Rms, Tensor
from .dense import SCALE, DenseFile, Form, build
from .transformer import SelfAttention, Transformer

ARCH = "talkie"


@dataclass(frozen=True)
class Talkie(Transformer):
    """`amounts` holds the factor by which each layer adds the embedding."""

    amounts: Sequence[float]

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - layers see x alone
        embedded = x
        for i, amount in enumerate(self.amounts):
            x = self.layer(g, i, x)
            with g.layer(i):
                x = g.add(x, g.scale(embedded, amount))
        return x


def load(file: GGUFFile) -> Talkie:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = DenseFile(file, ARCH)
    tensors, hyper = source.tensors, source.hyper

    def normed_heads(i: int, p: SelfAttention) -> SelfAttention:
        # Rotation keeps the length of a head, so the norm may come first.
        name, rows = f"blk.{i}.attn_q_norm", HeadRows(p.how.heads, 1, 0, 1, repeats=hyper.head_size)
        gains = tensors.numbers_of_heads(f"{name}.channels", f"{name}.weight", rows)
        return replace(p, head_norms=(Rms(gains, hyper.eps), Rms(None, hyper.eps)))

    amounts = [tensors.number(f"blk.{i}.layer_output_scale.weight", default=1.0) for i in range(hyper.layers)]
    form = Form(
        pairing="neox",
        norm_weights=False,
        embedding_norm="unit",
        logit_scale=file.float(f"{ARCH}.logit_scale", *SCALE),
    )
    p = build(source, form, normed_heads)
    return Talkie(p.ends, p.weights, p.attentions, p.parallel, p.feeds, amounts)
