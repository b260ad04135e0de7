"""Gemma 3n: a variant of Gemma with several residual streams.

AltUp: of four streams, layers compute one and predict the others. LAuReL: a low-rank branch is parallel to attention.
As in Gemma 4, there are per-layer embeddings, and layers that read the keys and values of others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Alternating, Cache, Ops, Rms, Tensor, Weight
from .dense import DenseFile, Form, take_gates
from .gemma4 import (
    LOGIT_CAP,
    NEAR_BASE,
    LayerEmbeddings,
    LayerInput,
    SharingAttention,
    layer_inputs,
    take_attention,
    take_caches,
    take_layer_embeddings,
    take_layer_input,
    take_norm,
)
from .layered import Layered
from .rope import unscaled
from .transformer import Output, attend, gates, output

ARCH = "gemma3n"
PERIOD = 5  # layers from one full layer to the next, if the file does not specify them
STREAMS = 4
OWN_KEYS = 20  # layers with keys of their own, if the file does not specify it
SPARSE, DEVIATIONS = 10, 1.6448533535003662  # layers that keep the largest 5%, if the file does not specify it


@dataclass(frozen=True)
class AltUp:
    """Parameters with which a layer predicts all streams from each other, and corrects them by its result."""

    norm: Rms
    router: Weight  # [S, D]
    predict: Weight  # [S · S, S]
    correct: Weight  # [S, S]
    scale: Weight  # [D], scale of the first stream where per-layer embeddings are added


@dataclass(frozen=True)
class Laurel:
    """A low-rank branch parallel to attention."""

    down: Weight  # [R, D]
    up: Weight  # [D, R]
    after: Rms


@dataclass(frozen=True)
class SparseFeed:
    """A feed-forward that may zero all gates except the largest."""

    norm: Rms
    gates: Alternating | tuple[Weight, Weight]
    deviations: float | None  # gates above the mean by this many deviations are open; None: all are
    output: Output


@dataclass(frozen=True)
class Layer:
    """Parameters of one layer."""

    attention: SharingAttention
    laurel: Laurel
    feed: SparseFeed
    altup: AltUp
    layer_input: LayerInput


@dataclass(frozen=True)
class Gemma3n(Layered):
    """A model: its layers, and the matrices that convert an embedding to streams, and streams to a row."""

    by_layer: LayerEmbeddings
    project: tuple[Weight, ...]  # [D, D] of each stream but the first
    join: tuple[Weight, ...]  # the same, at the end
    blocks: tuple[Layer, ...]

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        inputs = layer_inputs(g, self.by_layer, x, ids)
        streams = [x, *(g.match_length(g.linear(x, weight), x) for weight in self.project)]
        for i, p in enumerate(self.blocks):
            with g.layer(i):
                streams = block(g, p, streams, inputs)
        first, others = streams[0], zip(streams[1:], self.join, strict=True)
        every = [first, *(g.match_length(g.linear(other, weight), first) for other, weight in others)]
        return g.scale(reduce(g.add, every), 1 / STREAMS)

    @property
    def caches(self) -> list[Cache]:
        """Keys and values of the layers that have their own."""
        return list(dict.fromkeys(p.attention.cache for p in self.blocks))


def block(g: Ops[Tensor], p: Layer, streams: Sequence[Tensor], inputs: Tensor) -> list[Tensor]:
    """The streams after a layer.

    All are predicted. The first is then corrected by the layer's result, and the others add its embedding.
    """
    predicted = g.predict_streams(streams, g.linear(modalities(g, p.altup, streams[0]), p.altup.predict))
    found = feed(g, p.feed, attend_and_laurel(g, p.attention, p.laurel, predicted[0]))
    amounts = g.linear(modalities(g, p.altup, found), p.altup.correct)
    [first] = g.correct_streams(predicted[:1], found, amounts)
    own = g.linear(g.scale_columns(first, p.altup.scale), p.layer_input.gate, then="gelu")
    z = g.linear(g.mul_columns(own, inputs, p.layer_input.first), p.layer_input.output.weight)
    after = p.layer_input.output.norm
    assert after is not None
    z = g.rms_norm(z, after.weight, after.eps)
    return list(g.correct_streams(predicted, found, amounts, add=z))


def modalities(g: Ops[Tensor], p: AltUp, x: Tensor) -> Tensor:
    """tanh(W norm(x) / D)"""
    return g.linear(x, p.router, then="tanh", norm=p.norm)


def attend_and_laurel(g: Ops[Tensor], p: SharingAttention, laurel: Laurel, x: Tensor) -> Tensor:
    """(x + norm(W_o attention(h)) + h + norm(W_up W_down h)) / sqrt(2), h = norm(x)"""
    h = g.rms_norm(x, p.norm.weight, p.norm.eps)
    *qkv, low = g.linears([h] * (len(p.matrices) + 1), [*p.matrices, laurel.down])
    q, k, v = (*qkv, None, None)[:3]
    assert q is not None
    y = g.rms_norm(g.linear(low, laurel.up, add=None), laurel.after.weight, laurel.after.eps, add=h)
    return g.scale(output(g, p.output, attend(g, q, k, v, p.cache, p.how, p.value), g.add(x, y)), 1 / math.sqrt(2))


def feed(g: Ops[Tensor], p: SparseFeed, x: Tensor) -> Tensor:
    """x + norm(W_down (gelu(excess(W_gate h)) · W_up h)), h = norm(x)"""
    if p.deviations is None:
        return output(g, p.output, gates(g, x, p.gates, "gelu", p.norm), x)
    assert isinstance(p.gates, tuple), "gate and up are separate"
    gate, up = g.linears([x, x], p.gates, norm=p.norm)
    return output(g, p.output, g.gated(g.excess(gate, p.deviations), up, "gelu"), x)


def load(file: GGUFFile) -> Gemma3n:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = DenseFile(file, ARCH)
    hyper, tensors = source.hyper, source.tensors
    width = hyper.width
    file.int(f"{ARCH}.altup.num_inputs", low=STREAMS, high=STREAMS, default=STREAMS)
    file.int(f"{ARCH}.altup.active_idx", low=0, high=0, default=0)
    cap = source.cap("final_logit_softcapping", default=LOGIT_CAP)
    ends = source.ends(Form(embedding_scale=math.sqrt(width), logit_cap=cap))
    size = file.int(f"{ARCH}.embedding_length_per_layer_input", low=1, high=1 << 14, default=256)
    embeddings = take_layer_embeddings(source, size)
    project, join = (tensors.unstack(f"altup_{x}.weight", STREAMS - 1, width, width) for x in ("proj", "unembd_proj"))
    blocks = _take_layers(source, size)
    tensors.refuse_the_rest()
    return Gemma3n(ends, tuple(tensors.taken), embeddings, project, join, blocks)


def _take_layers(source: DenseFile, size: int) -> tuple[Layer, ...]:
    hyper = source.hyper
    full, windows = source.rope("neox"), source.windows(PERIOD)
    near = unscaled(source.near(full, NEAR_BASE))
    caches = take_caches(source, windows, [hyper.head_size] * hyper.layers, max(0, hyper.layers - OWN_KEYS))
    sparse = _deviations(source)
    return tuple(
        Layer(
            take_attention(source, i, near if window else full, hyper.head_size, cache),
            _take_laurel(source, i),
            _take_feed(source, sparse[i], i),
            _take_altup(source, i),
            take_layer_input(source, size, i),
        )
        for i, (window, cache) in enumerate(zip(windows, caches, strict=True))
    )


def _deviations(source: DenseFile) -> list[float | None]:
    """For each layer, the number of standard deviations above which a gate is open; minus infinity if all are open."""
    layers, said = source.hyper.layers, source.file.metadata.get(f"{ARCH}.activation_sparsity_scale")
    if not isinstance(said, np.ndarray):
        return [DEVIATIONS if i < SPARSE else None for i in range(layers)]
    if said.dtype.kind != "f" or len(said) < layers or np.isnan(said[:layers]).any() or said[:layers].max() > 1e3:
        expected = f"a number of at most 1000 for each of {layers} layers"
        raise source.tensors.bad(f"metadata key '{ARCH}.activation_sparsity_scale'", str(said)[:60], expected)
    return [float(one) if np.isfinite(one) else None for one in said[:layers]]


def _take_laurel(source: DenseFile, i: int) -> Laurel:
    at, tensors, width = f"blk.{i}.laurel", source.tensors, source.hyper.width
    rank = tensors.dimension(f"{at}_l.weight", 0)
    return Laurel(
        tensors.take(f"{at}_l.weight", rank, width),
        tensors.take(f"{at}_r.weight", width, rank),
        take_norm(source, "laurel_post_norm", i),
    )


def _take_feed(source: DenseFile, deviations: float | None, i: int) -> SparseFeed:
    at, tensors, width, inner = f"blk.{i}.ffn", source.tensors, source.hyper.width, source.hyper.inner[i]
    return SparseFeed(
        take_norm(source, "ffn_norm", i),
        take_gates(tensors, at, inner, width, separate=deviations is not None),
        deviations,
        Output(tensors.take(f"{at}_down.weight", width, inner), norm=take_norm(source, "post_ffw_norm", i)),
    )


def _take_altup(source: DenseFile, i: int) -> AltUp:
    at, tensors, width = f"blk.{i}.altup", source.tensors, source.hyper.width
    router = tensors.take(f"{at}_router.weight", STREAMS, width)
    return AltUp(
        take_norm(source, "altup_router_norm", i),
        replace(router, scale=router.scale / width),
        tensors.take(f"{at}_predict_coef.weight", STREAMS * STREAMS, STREAMS),
        tensors.take(f"{at}_correct_coef.weight", STREAMS, STREAMS),
        tensors.take(f"{at}_correct_scale.weight", width),
    )
