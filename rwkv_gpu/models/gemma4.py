"""Gemma 4: Gemma 3's layers with two head sizes.

The small models have per-layer embeddings, and layers that read the keys and values of others. The 26B model has
experts in addition to a dense feed-forward.

RoPE applies to a quarter of a head in full layers, and to all of it in window layers. Values are normed without
weights. If a layer has no value matrix, its values are its keys before their norm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Cache, HeadNorms, Ops, Rms, Rope, Tensor, Weight
from .dense import DenseFile, Form, take_gates, take_qkv
from .experts import ExpertSizes, Mixture, mixture, read_experts, take_mixture
from .layered import Layered
from .rope import read_dims, unscaled
from .tensors import Tensors
from .transformer import FeedForward, Output, attend, feed_forward, inner, output, stored_size

ARCH = "gemma4"
PERIOD = 6  # layers from one full layer to the next, if the file does not specify them
NEAR_BASE, LOGIT_CAP = 10000.0, 30.0  # base of window layers, and cap of logits, if the file does not specify them


@dataclass(frozen=True)
class SharingAttention:
    """Parameters of one attention, which may read the cache of an earlier layer."""

    norm: Rms
    matrices: tuple[Weight, ...]  # weights of q, k and v; without v if v is k; only q if another layer writes the cache
    output: Output
    cache: Cache
    how: Attention
    value: int  # numbers of a value


@dataclass(frozen=True)
class DenseAndExperts:
    """Parameters of a dense feed-forward and experts in parallel, each with norms before and after it."""

    dense: FeedForward
    dense_after: Rms
    router_norm: Rms
    norm: Rms
    experts: Mixture
    after: Rms
    both_after: Rms


@dataclass(frozen=True)
class LayerInput:
    """Parameters by which a layer adds its per-layer embedding."""

    gate: Weight  # [n, D]
    output: Output  # [D, n]
    first: int  # column of its part


@dataclass(frozen=True)
class Layer:
    """Parameters of one layer."""

    attention: SharingAttention
    feed: FeedForward | DenseAndExperts
    layer_input: LayerInput | None
    scale: float  # scale of the layer's output


@dataclass(frozen=True)
class LayerEmbeddings:
    """Embeddings of a token for each layer."""

    table: Weight  # [V, L · n]
    projection: Weight  # [L · n, D]
    norm: Rms  # [n], of each layer's part
    layers: int  # L


@dataclass(frozen=True)
class Gemma4(Layered):
    """A model: its layers, and the per-layer embeddings that are added in each."""

    by_layer: LayerEmbeddings | None
    blocks: tuple[Layer, ...]

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        return self.streams(g, x, ids)[-1]

    def streams(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> list[Tensor]:
        """The residual stream before each layer, and after the last"""
        streams = [x]
        inputs = layer_inputs(g, self.by_layer, x, ids) if self.by_layer else None  # [T, L · n]
        for i, p in enumerate(self.blocks):
            with g.layer(i):
                x = sharing_attention(g, p.attention, x)
                x = feed_forward(g, p.feed, x) if isinstance(p.feed, FeedForward) else dense_and_experts(g, p.feed, x)
                if inputs is not None and p.layer_input is not None:
                    y = g.linear(x, p.layer_input.gate, then="gelu")
                    x = output(g, p.layer_input.output, g.mul_columns(y, inputs, p.layer_input.first), x)
                if p.scale != 1:
                    x = g.scale(x, p.scale)
            streams.append(x)
        return streams

    @property
    def caches(self) -> list[Cache]:
        """Keys and values of the layers that have their own."""
        return list(dict.fromkeys(p.attention.cache for p in self.blocks))


def sharing_attention(g: Ops[Tensor], p: SharingAttention, x: Tensor) -> Tensor:
    """x + norm(W_o attention(W_q h, W_k h, W_v h)), h = norm(x)"""
    q, *kv = g.linears([x] * len(p.matrices), p.matrices, norm=p.norm)
    k, v = kv or (None, None)
    return output(g, p.output, attend(g, q, k, v, p.cache, p.how, p.value), x)


def dense_and_experts(g: Ops[Tensor], p: DenseAndExperts, x: Tensor) -> Tensor:
    """x + norm(norm(dense(x)) + norm(experts(norm(x)))), the router reads another norm of x"""
    y = g.linear(inner(g, p.dense, x), p.dense.output.weight)
    y = g.rms_norm(y, p.dense_after.weight, p.dense_after.eps)
    z = mixture(g, p.experts, x, p.norm, None, router_norm=p.router_norm)
    z = g.rms_norm(z, p.after.weight, p.after.eps, add=y)
    return g.rms_norm(z, p.both_after.weight, p.both_after.eps, add=x)


def layer_inputs(g: Ops[Tensor], p: LayerEmbeddings, x: Tensor, ids: Tensor) -> Tensor:
    """(norm(W x / sqrt(D)) + table[id] · sqrt(n)) / sqrt(2), the norm by layer"""
    size = p.table.shape[1] // p.layers
    y = g.linear(x, p.projection, scale=1 / math.sqrt(p.projection.shape[1]))
    y = g.group_rms_norm(y, p.norm.weight, p.layers, p.norm.eps)
    return g.scale(g.add(y, g.embed(p.table, ids, scale=math.sqrt(size))), 1 / math.sqrt(2))


def load(file: GGUFFile) -> Gemma4:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = DenseFile(file, ARCH)
    width = source.hyper.width
    cap = source.cap("final_logit_softcapping", default=LOGIT_CAP)
    ends = source.ends(Form(embedding_scale=math.sqrt(width), logit_cap=cap))
    size = file.int(f"{ARCH}.embedding_length_per_layer_input", low=0, high=1 << 14, default=0)
    embeddings = take_layer_embeddings(source, size) if size else None
    blocks = _take_layers(source, size)
    source.tensors.refuse_the_rest()
    return Gemma4(ends, tuple(source.tensors.taken), embeddings, blocks)


def take_layer_embeddings(source: DenseFile, size: int) -> LayerEmbeddings:
    """Takes the tables of per-layer embeddings of that size."""
    hyper, tensors = source.hyper, source.tensors
    width = hyper.layers * size
    return LayerEmbeddings(
        tensors.take("per_layer_token_embd.weight", hyper.vocabulary, width),
        tensors.take("per_layer_model_proj.weight", width, hyper.width),
        Rms(tensors.take("per_layer_proj_norm.weight", size), hyper.eps),
        hyper.layers,
    )


def _take_layers(source: DenseFile, size: int) -> tuple[Layer, ...]:
    file, hyper = source.file, source.hyper
    full = source.rope("neox")
    swa = f"{ARCH}.attention.key_length_swa"
    near_size = file.int(swa, low=8, high=hyper.head_size, default=hyper.head_size)
    near = replace(
        unscaled(source.near(full, NEAR_BASE)),
        dims=read_dims(file, source.tensors, f"{ARCH}.rope.dimension_count_swa", near_size),
    )
    experts = file.int(f"{ARCH}.expert_count", low=0, default=0)
    sizes = read_experts(file, ARCH, hyper.width, normalise=True) if experts else None
    windows = source.windows(PERIOD)
    head_sizes = [near_size if window else hyper.head_size for window in windows]
    caches = take_caches(source, windows, head_sizes, 0)
    return tuple(
        Layer(
            take_attention(source, i, near if window else full, head_sizes[i], cache),
            take_feed(source, sizes, i),
            take_layer_input(source, size, i) if size else None,
            source.tensors.number(f"blk.{i}.layer_output_scale.weight", default=1.0),
        )
        for i, (window, cache) in enumerate(zip(windows, caches, strict=True))
    )


def take_caches(source: DenseFile, windows: Sequence[int], sizes: Sequence[int], shared: int) -> list[Cache]:
    """The cache of each layer: its own, or that of an earlier layer. By default, the last `shared` layers have none."""
    layers = source.hyper.layers
    key = f"{source.arch}.attention.shared_kv_layers"
    own = layers - source.file.int(key, low=0, high=layers - 1, default=shared)
    caches: list[Cache] = []
    for i, (window, size) in enumerate(zip(windows, sizes, strict=True)):
        cache = Cache(f"blk.{i}.kv", source.hyper.kv_heads[i], stored_size(size), window=window)
        if i >= own:  # layers share the keys of the last two layers with own keys: one window layer, one full
            other = caches[own - 2 if window else own - 1]
            if replace(other, name=cache.name) != cache:
                found, expected = (f"{c.heads} heads of {c.size}, window {c.window}" for c in (other, cache))
                raise source.tensors.bad(f"the layer whose keys layer {i} reads", found, expected)
            cache = other
        caches.append(cache)
    return caches


def take_norm(source: DenseFile, name: str, i: int) -> Rms:
    """A norm of layer i."""
    return Rms(source.tensors.take(f"{source.blocks}.{i}.{name}.weight", source.hyper.width), source.hyper.eps)


def take_attention(source: DenseFile, i: int, rope: Rope, size: int, cache: Cache) -> SharingAttention:
    """The attention of layer i with heads of that size, which may read the cache of another."""
    at, hyper, tensors = f"{source.blocks}.{i}.attn", source.hyper, source.tensors
    shared = cache.name != f"{source.blocks}.{i}.kv"
    heads = hyper.heads[i]
    if shared:  # converters write these unused tensors
        tensors.skip(*(f"{at}_{name}.weight" for name in ("k", "v", "k_norm")))
    return SharingAttention(
        norm=take_norm(source, "attn_norm", i),
        matrices=_take_matrices(tensors, at, (heads * size, cache.heads * size), hyper.width, shared=shared),
        output=Output(
            tensors.take(f"{at}_output.weight", hyper.width, heads * size),
            norm=take_norm(source, "post_attention_norm", i),
        ),
        cache=cache,
        how=Attention(
            heads,
            rope,
            scale=1.0,
            window=cache.window,
            norms=HeadNorms(
                hyper.eps,
                tensors.take(f"{at}_q_norm.weight", size),
                None if shared else tensors.take(f"{at}_k_norm.weight", size),
                v=not shared,
            ),
            head=0 if size == cache.size else size,
        ),
        value=size,
    )


def _take_matrices(tensors: Tensors, at: str, rows: tuple[int, int], width: int, *, shared: bool) -> tuple[Weight, ...]:
    """Takes q, k and v, which may be one matrix; `rows` are those of q, and of k or v. A `shared` layer has only q."""
    of_q, of_kv = rows
    if shared and f"{at}_qkv.weight" in tensors:
        names = (f"{at}_{name}.weight" for name in "qkv")
        parts = tensors.split(f"{at}_qkv.weight", width, *zip(names, (of_q, of_kv, of_kv), strict=True))
        tensors.keep(parts[0])
        return parts[:1]
    if shared:
        return (tensors.take(f"{at}_q.weight", of_q, width),)
    if f"{at}_v.weight" in tensors or f"{at}_qkv.weight" in tensors:
        return take_qkv(tensors, at, (of_q, of_kv, of_kv), width)
    q, k = (tensors.take(f"{at}_{name}.weight", count, width) for name, count in zip("qk", rows, strict=True))
    return q, k, k  # k and v are the same: computing both is faster than a copy


def take_feed(source: DenseFile, sizes: ExpertSizes | None, i: int) -> FeedForward | DenseAndExperts:
    """The feed-forward of layer i."""
    hyper, tensors = source.hyper, source.tensors
    inner, width = hyper.inner[i], hyper.width
    down = tensors.take(f"{source.blocks}.{i}.ffn_down.weight", width, inner)
    gates = take_gates(tensors, f"{source.blocks}.{i}.ffn", inner, width)
    norm, after = take_norm(source, "ffn_norm", i), take_norm(source, "post_ffw_norm", i)
    if sizes is None:
        return FeedForward(norm, gates, "gelu", Output(down, norm=after))
    experts = take_mixture(tensors, sizes, i, then="gelu")
    return DenseAndExperts(
        dense=FeedForward(norm, gates, "gelu", Output(down)),
        dense_after=take_norm(source, "post_ffw_norm_1", i),
        router_norm=Rms(tensors.take(f"{source.blocks}.{i}.ffn_gate_inp.scale", width), hyper.eps),
        norm=take_norm(source, "pre_ffw_norm_2", i),
        experts=replace(experts, gating=replace(experts.gating, logit_scale=width**-0.5)),
        after=take_norm(source, "post_ffw_norm_2", i),
        both_after=after,
    )


def take_layer_input(source: DenseFile, size: int, i: int) -> LayerInput:
    """Takes the parameters of the per-layer embedding of layer i."""
    tensors, width = source.tensors, source.hyper.width
    return LayerInput(
        tensors.take(f"{source.blocks}.{i}.inp_gate.weight", size, width),
        Output(tensors.take(f"{source.blocks}.{i}.proj.weight", width, size), norm=take_norm(source, "post_norm", i)),
        i * size,
    )
