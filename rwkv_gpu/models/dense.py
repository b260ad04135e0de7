"""`Form`, which declares a family of transformers, and the code that reads a model of that form from a file.

Each field of a `Form` is one property in which families differ; the default is that of Llama.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import REQUIRED, GGUFFile
from ..ops.vocabulary import (
    Activation,
    Alternating,
    AnyNorm,
    Attention,
    Cache,
    ClampedSwiglu,
    Glu,
    HeadNorms,
    KeyIndex,
    LateTemperature,
    LayerNorm,
    Pairing,
    Rms,
    Rope,
    Temperature,
    Weight,
    Xielu,
)
from .block_index import BlockIndex, take_block_index
from .layered import Diffusion, Ends
from .rope import BASE, read_dims, read_rope, unscaled
from .tensors import EPS, LONGEST_CONTEXT, Tensors
from .transformer import (
    LARGEST_HEAD,
    SMALLEST_HEAD,
    FeedForward,
    Hyper,
    Output,
    SelfAttention,
    Transformer,
    stored_size,
)

CAP = 1e-3, 1e6  # range of limits of scores and logits
SCALE = 1e-6, 1e6
LIMIT = 0.0, 1e6  # range of the clamps of gates, and of q, k and v
CLAMP = "attention.clamp_kqv"
BUCKETS = 4, 256  # range of the number of buckets of relative positions
NEAR_BASE = 10000.0  # RoPE base of window layers if neither the file nor the family states one
AFTER = "post_attention_norm", "post_ffw_norm"  # norms after attention and feed-forwards in most families


MASKS = "<|mdm_mask|>", "<|mask|>"  # names of the mask token, which stands for an undecided one


@dataclass(frozen=True)
class Form:
    """All properties in which a family may differ from other transformers."""

    ropes: Sequence[Rope | None] = ()  # RoPE of each layer, None for no RoPE; empty: the file's RoPE in all layers
    pairing: Pairing = "normal"  # pairs of numbers that rotate together
    windows: Sequence[int] = ()  # window of each layer, 0 for full attention; empty: the file's window in all layers
    activation: Activation = "silu"
    thens: Sequence[Glu | Xielu] = ()  # activation of each feed-forward or shared expert, in place of `activation`
    glu: bool = True  # feed-forwards have a gate
    parallel: bool = False  # attention and feed-forward of a layer read the same input
    layer_norms: bool = False  # norms subtract the mean, and have the biases that the file has
    norm_weights: bool = True  # norms of the residual stream have weights, which the file must have
    clamp: float = 0.0  # q, k and v are clamped to this magnitude; 0 is no limit
    # Norms of q and k: per head, per head after RoPE, over all heads, or layer norms with own weights per head.
    head_norms: Literal["none", "each", "turned", "whole", "layer"] = "none"
    head_eps: float | None = None  # eps of layer norms of heads; None is the file's
    gated: bool = False  # attention · then(W_gate h), by element or by head, depending on the file
    gate_then: Activation = "sigmoid"
    blocks: str = "blk"  # prefix of the names of tensors of layers
    attention: str = "attn"  # prefix of the names of attention's tensors in a layer
    attention_output: str = "attn_output"  # name of the matrix after attention
    norms: tuple[str | None, str | None] = ("attn_norm", "ffn_norm")  # norms before attention and feed-forward
    plain_start: bool = False  # the first attention may read embeddings without a norm
    last_norm: str | None = "output_norm"  # norm after all layers
    inside: tuple[str | None, str | None] = (None, None)  # norms of the inputs of their last matrices
    after: tuple[str | None, str | None] = (None, None)  # norms of their outputs, before these are added
    sums: tuple[str | None, str | None] = (None, None)  # norms of the residual stream, after these are added
    sum_again: str | None = None  # a second norm after attention, over its normed result plus its input
    after_eps: float | None = None  # eps of these norms; None is the file's
    score_scale: float | None = None  # None is 1 / sqrt(N)
    score_cap: float = 0.0
    alibi: float = 0.0  # the largest ALiBi slope, as in `Attention`; 0 is no ALiBi
    biases: bool = False  # scores gain a bias by relative position, from a table of the layer or of the first layer
    temperature: Temperature | LateTemperature | None = None
    indexes: Sequence[KeyIndex | None] = ()  # how each layer chooses the positions that a row sees; empty: all are seen
    sinks: Literal["", "all", "some"] = ""  # layers with attention sinks: one more score per head, without a value
    branch_scale: float = 1.0  # scale of the output of each branch
    attention_scale: float = 1.0  # a further scale of the output of attention
    embedding_scale: float = 1.0
    embedding_norm: Literal["none", "unit", "own"] = "none"  # an RMS norm without weight, or one of the file
    learned_positions: bool = False  # embeddings of positions are added to those of tokens
    token_types: bool = False  # embeddings of token types are added, if the file has them; always the first type
    causal: bool | None = None  # causal attention; None is as the file states
    diffuses: bool = False  # a diffusion model, with attention in both directions
    around: bool = False  # without causal attention, windows are centred on a query instead of ending at it
    head: bool = True  # the model has logits
    projections: bool = False  # final embeddings are multiplied by matrices, if the file has them
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    heads_read: Literal["", "normed", "residual"] = ""  # rows of the model that heads of the file read; "": unknown


class DenseFile:
    """A file of a transformer: its keys, its sizes, and its tensors as required by a form."""

    def __init__(self, file: GGUFFile, arch: str, heads: int = 0, inside: str = "") -> None:
        """Reads the sizes. The last `heads` blocks, which predict further tokens, count as layers.

        `inside` prefixes the names of frequency divisors. Functions without a form also use it for the names of layers.
        """
        self.file, self.arch, self.inside, self.blocks = file, arch, inside, f"{inside}blk"
        self.tensors = Tensors(file)
        self.hyper = read_hyper(file, arch, self.tensors, heads)

    def assume_window(self, window: int) -> None:
        """Sets the window of files that do not specify one."""
        if f"{self.arch}.attention.sliding_window" not in self.file.metadata:
            self.hyper = replace(self.hyper, window=window)

    def causal(self, form: Form) -> bool:
        """Whether attention is causal."""
        said = self.file.bool(f"{self.arch}.attention.causal", default=True)
        return (said if form.causal is None else form.causal) and not form.diffuses

    def number(self, key: str, low: float, high: float, default: float) -> float:
        """A number from the metadata."""
        return self.file.float(f"{self.arch}.{key}", low, high, default=default)

    def cap(self, key: str, default: float) -> float:
        """A cap of scores or logits; 0: none."""
        return (
            self.number(key, *CAP, default=default) if self.file.float(f"{self.arch}.{key}", default=default) else 0.0
        )

    def score_scale(self) -> float | None:
        """The scale of scores, if the file has one other than 0."""
        key = "attention.scale"
        return self.number(key, *SCALE, 0.0) if self.file.float(f"{self.arch}.{key}", default=0.0) else None

    def scale(self, key: str, default: float = 1.0) -> float:
        """A factor from the metadata; files may write 0 for 1."""
        said = self.file.float(f"{self.arch}.{key}", default=default)
        return self.number(key, *SCALE, default=default) if said else 1.0

    def rope(self, pairing: Pairing) -> Rope:
        """The rotation that the file describes."""
        hyper = self.hyper
        return read_rope(self.file, self.arch, self.tensors, pairing, hyper.head_size, hyper.context, self.inside)

    def near(self, full: Rope, base: float | None = None) -> Rope:
        """The RoPE of window layers: that of full layers, with other dims or another base if the file states them.

        `base` is used if the file states none.
        """
        key = f"{self.arch}.rope.dimension_count_swa"
        dims = read_dims(self.file, self.tensors, key, self.hyper.head_size) if key in self.file.metadata else full.dims
        base = self.number("rope.freq_base_swa", *BASE, default=full.base if base is None else base)
        return replace(full, dims=dims, base=base)

    def ropes(self, full: Rope, windows: Sequence[int]) -> list[Rope]:
        """The RoPE of each layer, for models that use it in all layers."""
        near = self.near(full)
        return [near if window else full for window in windows]

    def near_unscaled(self, pairing: Pairing, windows: Sequence[int], base: float | None = None) -> list[Rope]:
        """The RoPE of each layer if only full layers are scaled for long contexts; `base` is as in `near`."""
        full = self.rope(pairing)
        near = unscaled(self.near(full, base))
        return [near if window else full for window in windows]

    def turning(self, full: Rope, windows: Sequence[int]) -> list[Rope | None]:
        """The RoPE of each layer, for models that use it in window layers only."""
        near = self.near(full)
        return [near if window else None for window in windows]

    def windows(self, period: int, *, full_first: bool = False) -> list[int]:
        """The window of each layer. The file states the layers, or all have one except every `period`-th.

        With `full_first`, the first of `period` layers has none instead of the last.
        """
        pattern = "attention.sliding_window_pattern"
        key, layers = f"{self.arch}.{pattern}", range(self.hyper.layers)
        if isinstance(self.file.metadata.get(key), np.ndarray):
            return [self.hyper.window if near else 0 for near in self.flags(pattern, default=True)]
        period = self.file.int(key, low=0, high=1024, default=period)
        full = 0 if full_first else period - 1
        return [self.hyper.window if period == 0 or i % period != full else 0 for i in layers]

    def clamps(self, name: str, how: ClampedSwiglu) -> list[Glu]:
        """The gated activation `how` of each layer, with limits from the file; 0 is none."""
        return clamps_of(self.floats(f"{self.arch}.{name}", *LIMIT, default=0.0), how)

    def floats(self, key: str, low: float, high: float, default: float | None = None) -> list[float]:
        """A number for each layer; the metadata has one per layer or for all. Required without a default."""
        return floats_by_layer(self.file, key, self.hyper.layers, low, high, default)

    def flags(self, name: str, *, default: bool) -> list[bool]:
        """A flag for each layer: an array of the file, or the default for all layers."""
        key, layers = f"{self.arch}.{name}", self.hyper.layers
        said = self.file.metadata.get(key)
        if not isinstance(said, np.ndarray):
            return [default] * layers
        if said.ndim != 1 or len(said) < layers or said.dtype.kind not in "biu":
            raise self.tensors.bad(f"metadata key '{key}'", f"{len(said)} entries", f"one for each of {layers}")
        return [bool(flag) for flag in said[:layers]]

    def ends(self, form: Form) -> Ends:
        """Everything except the layers."""
        hyper, tensors = self.hyper, self.tensors
        shape = hyper.vocabulary, hyper.width
        embedding = tensors.take("token_embd.weight", *shape)
        causal = self.causal(form)
        head = form.head and (causal or form.diffuses)
        if not head:
            tensors.skip("output.weight", "output.bias")
            tensors.classified = True
        return Ends(
            embedding,
            self.norm(form, form.last_norm) if form.last_norm else None,
            (tensors.find("output.weight", *shape) or embedding) if head else None,
            hyper.context,
            form.embedding_scale,
            self._embedding_norm(form),
            tensors.find("output.bias", hyper.vocabulary) if head else None,
            form.logit_scale,
            form.logit_cap,
            tensors.take("position_embd.weight", hyper.context, hyper.width) if form.learned_positions else None,
            self._first_type() if form.token_types else None,
            self._projections() if form.projections else (),
            causal=causal,
            diffusion=self._diffusion() if form.diffuses else None,
        )

    def _diffusion(self) -> Diffusion:
        """How a diffusion model generates text. Files of LLaDA may state the mask only as a token of the vocabulary."""
        file, key = self.file, "tokenizer.ggml.mask_token_id"
        if key in file.metadata:
            mask = file.int(key, low=0, high=self.hyper.vocabulary - 1)
        else:
            tokens = file.metadata.get("tokenizer.ggml.tokens")
            names = [*tokens] if isinstance(tokens, list | tuple) else []
            mask = next((names.index(name) for name in MASKS if name in names), -1)
        if not 0 <= mask < self.hyper.vocabulary:
            raise self.tensors.bad(f"metadata key '{key}'", "no mask token", "one, which a diffusion model needs")
        return Diffusion(mask, file.bool("diffusion.shift_logits", default=True))

    def _first_type(self) -> Weight | None:
        """The vector added to every embedding if the file has token types: the row of the first type."""
        name = "token_types.weight"
        if name not in self.tensors:
            return None
        return self.tensors.first_row(name, self.tensors.dimension(name, 0), self.hyper.width)

    def _projections(self) -> tuple[Weight, ...]:
        """The matrices applied to final embeddings one after the other, if the file has any."""
        width, found = self.hyper.width, []
        for name in ("dense_2.weight", "dense_3.weight"):
            if name in self.tensors:
                found.append(self.tensors.take(name, self.tensors.dimension(name, 0), width))
                width = found[-1].shape[0]
        return tuple(found)

    def _embedding_norm(self, form: Form) -> AnyNorm | None:
        if form.embedding_norm == "own":
            return self.norm(form, "token_embd_norm")
        return Rms(None, self.hyper.eps) if form.embedding_norm == "unit" else None

    def attentions(self, form: Form) -> tuple[SelfAttention, ...]:
        """The parameters of all layers."""
        windows = form.windows or [self.hyper.window] * self.hyper.layers
        if not self.causal(form) and not form.around and any(0 < window < self.hyper.context for window in windows):
            why = f"'{self.arch}' with windows that limit only earlier positions is not supported"
            raise UnsupportedModel(f"{self.file.path}: {why}")
        ropes = form.ropes or self.ropes(self.rope(form.pairing), windows)
        return tuple(
            self.attention(form, i, rope, window) for i, (rope, window) in enumerate(zip(ropes, windows, strict=True))
        )

    def attention(self, form: Form, i: int, rope: Rope | None, window: int) -> SelfAttention:
        """Returns the attention of layer i."""
        at, hyper, tensors = f"{form.blocks}.{i}.{form.attention}", self.hyper, self.tensors
        last = f"{form.blocks}.{i}.{form.attention_output}"
        width, size, heads, kv_heads = hyper.width, hyper.head_size, hyper.heads[i], hyper.kv_heads[i]
        causal = self.causal(form)
        value = hyper.value_size
        rows = heads * size, kv_heads * size, kv_heads * value
        stored = stored_size(max(size, value))
        sinks = f"{at}_sinks.weight"
        q, k, v = take_qkv(tensors, at, rows, width)
        lengths = [("q", size), ("k", size)] if form.head_norms in ("each", "turned") else []
        norms = [Rms(tensors.take(f"{at}_{name}_norm.weight", n), hyper.eps) for name, n in lengths]
        by_head = (
            HeadNorms(hyper.eps, norms[0].weight, norms[1].weight, turned=form.head_norms == "turned")
            if norms
            else None
        )
        return SelfAttention(
            norm=self._before(form, 0, i),
            q=q,
            k=k,
            v=v,
            biases=take_qkv_biases(tensors, at, rows),
            whole_norms=self._whole_norms(form, at, rows) if form.head_norms == "whole" else None,
            gate=self._gate(f"{at}_gate.weight", heads, value) if form.gated else None,
            output=self._output(form, 0, last, heads * value, i, form.attention_scale),
            cache=Cache(f"blk.{i}.kv", kv_heads, stored, window=window if causal else 0),
            how=Attention(
                heads,
                rope,
                scale=size**-0.5 if form.score_scale is None else form.score_scale,
                window=window,
                norms=by_head,
                softcap=form.score_cap,
                alibi=form.alibi,
                biases=self._biases(form, i, heads) if form.biases else None,
                sinks=tensors.take(sinks, heads) if form.sinks and (form.sinks == "all" or sinks in tensors) else None,
                temperature=form.temperature,
                head=0 if size == stored else size,
                causal=causal,
            ),
            value=value,
            head_norms=self._head_layer_norms(form, at, size, heads, kv_heads) if form.head_norms == "layer" else None,
            gate_then=form.gate_then,
            clamp=form.clamp,
            index=self._index(form, i) if form.indexes else None,
        )

    def _index(self, form: Form, i: int) -> BlockIndex | None:
        how = form.indexes[i]
        size = self.file.int(f"{self.arch}.attention.indexer.key_length", low=1, high=1 << 12)
        return take_block_index(self.tensors, i, how, size, self.hyper.width, self.hyper.eps) if how else None

    def feed(self, form: Form, i: int) -> FeedForward:
        """Returns the feed-forward of layer i."""
        at, inner = f"{form.blocks}.{i}.ffn", self.hyper.inner[i]
        then = form.thens[i] if form.thens else form.activation
        return FeedForward(
            norm=self._before(form, 1, i),
            gates=take_gates(self.tensors, at, inner, self.hyper.width, separate=isinstance(then, ClampedSwiglu))
            if form.glu
            else self.tensors.take(f"{at}_up.weight", inner, self.hyper.width),
            then=then,
            output=self._output(form, 1, f"{at}_down", inner, i),
            biases=take_biases(self.tensors, at, inner, ("gate", "up") if form.glu else ("up",)),
        )

    def norm(self, form: Form, name: str, size: int = 0) -> AnyNorm:
        """A norm over the residual stream, or over `size` numbers."""
        kind, size = LayerNorm if form.layer_norms else _rms, size or self.hyper.width
        if not form.norm_weights:
            return kind(None, None, self.hyper.eps)
        weight = self.tensors.take(f"{name}.weight", size)
        return kind(weight, self.tensors.find(f"{name}.bias", size), self.hyper.eps)

    def after(self, form: Form, which: int, i: int) -> Rms | None:
        """The norm of the result of layer i's attention or feed-forward, before it is added."""
        name, eps = form.after[which], form.after_eps
        if name is None:
            return None
        at = f"{form.blocks}.{i}.{name}"
        weight = self.tensors.take(at if at in self.tensors else f"{at}.weight", self.hyper.width)
        return Rms(weight, self.hyper.eps if eps is None else eps)

    def _biases(self, form: Form, i: int, heads: int) -> Weight:
        """The biases of scores by relative position: the table of layer i, or that of the first."""
        own, first = (f"{form.blocks}.{layer}.attn_rel_b.weight" for layer in (i, 0))
        buckets = self.file.int(f"{self.arch}.attention.relative_buckets_count", *BUCKETS)
        return self.tensors.take_flat(own if own in self.tensors else first, buckets, heads)

    def _gate(self, name: str, heads: int, size: int) -> Weight:
        """The matrix of the gate of attention, with a row for each number of a head, or one per head."""
        by_head = name in self.tensors and self.tensors.dimension(name, 0) == heads
        return self.tensors.take(name, heads if by_head else heads * size, self.hyper.width)

    def _head_layer_norms(
        self, form: Form, at: str, size: int, heads: int, kv_heads: int
    ) -> tuple[LayerNorm, LayerNorm]:
        """The norms of q and k by head."""
        eps = self.hyper.eps if form.head_eps is None else form.head_eps

        def norm(name: str, count: int) -> LayerNorm:
            bias = f"{name}.bias"
            shift = self.tensors.take_flat(bias, count, size) if bias in self.tensors else None
            return LayerNorm(self.tensors.take_flat(f"{name}.weight", count, size), shift, eps)

        return norm(f"{at}_q_norm", heads), norm(f"{at}_k_norm", kv_heads)

    def _before(self, form: Form, which: int, i: int) -> AnyNorm | None:
        name = form.norms[which]
        if name is None:
            return None
        if form.plain_start and which == i == 0 and f"{form.blocks}.0.{name}.weight" not in self.tensors:
            return None
        return self.norm(form, f"{form.blocks}.{i}.{name}")

    def _output(self, form: Form, which: int, name: str, inner: int, i: int, scale: float = 1.0) -> Output:
        inside, total = form.inside[which], form.sums[which]
        return Output(
            self.tensors.take(f"{name}.weight", self.hyper.width, inner),
            self.tensors.find(f"{name}.bias", self.hyper.width),
            self.after(form, which, i),
            form.branch_scale * scale,
            Rms(self.tensors.take(f"{form.blocks}.{i}.{inside}.weight", inner), self.hyper.eps) if inside else None,
            self.norm(form, f"{form.blocks}.{i}.{total}") if total else None,
            self.norm(form, f"{form.blocks}.{i}.{form.sum_again}") if form.sum_again and which == 0 else None,
        )

    def _whole_norms(self, form: Form, at: str, rows: Sequence[int]) -> tuple[AnyNorm, AnyNorm]:
        """The norms of q and k, each over all heads."""
        return self.norm(form, f"{at}_q_norm", rows[0]), self.norm(form, f"{at}_k_norm", rows[1])


def _rms(weight: Weight | None, bias: Weight | None, eps: float) -> Rms:
    return Rms(weight, eps, bias)


def take_qkv(tensors: Tensors, at: str, rows: Sequence[int], width: int) -> tuple[Weight, ...]:
    """The matrices of q, k and v, which the file has separately or as rows of one matrix."""
    whole, names = f"{at}_qkv.weight", [f"{at}_{name}.weight" for name in "qkv"]
    if whole not in tensors:
        return tuple(tensors.take(name, count, width) for name, count in zip(names, rows, strict=True))
    parts = tensors.split(whole, width, *zip(names, rows, strict=True))
    tensors.keep(*parts)
    return parts


def take_qkv_biases(tensors: Tensors, at: str, rows: Sequence[int]) -> tuple[Weight | None, ...]:
    """The biases of q, k and v, as far as the file has them."""
    whole, names = f"{at}_qkv.bias", [f"{at}_{name}.bias" for name in "qkv"]
    if whole in tensors:
        parts = tensors.split(whole, 0, *zip(names, rows, strict=True))
        tensors.keep(*parts)
        return parts
    return tuple(tensors.find(name, count) for name, count in zip(names, rows, strict=True))


def take_biases(tensors: Tensors, at: str, inner: int, names: Sequence[str]) -> tuple[Weight | None, ...]:
    """The biases of some matrices of a feed-forward; empty if the file has none."""
    biases = tuple(tensors.find(f"{at}_{name}.bias", inner) for name in names)
    return biases if any(biases) else ()


def take_gates(
    tensors: Tensors, at: str, inner: int, width: int, suffix: str = "", *, separate: bool = False
) -> Alternating | tuple[Weight, Weight]:
    """Gate and up of a feed-forward, interleaved if possible; `suffix` is for the names of a shared expert."""
    gate, up, both = f"{at}_gate{suffix}.weight", f"{at}_up{suffix}.weight", f"{at}_gate_up{suffix}"
    # Both may be rows of one matrix, those of the gate first.
    if gate not in tensors and up in tensors and tensors.dimension(up, 0) == 2 * inner:
        gates = tensors.split(up, width, (f"{gate}.rows", inner), (f"{up}.rows", inner))
        if separate or tensors.any_separate(up):
            tensors.keep(*gates)
            return gates[0], gates[1]
        return tensors.interleave(both, *gates)
    biased = f"{at}_gate{suffix}.bias" in tensors or f"{at}_up{suffix}.bias" in tensors
    if tensors.same_format(gate, up) and not (biased or separate):
        return tensors.alternate(both, inner, width, gate, up)
    return tensors.take(gate, inner, width), tensors.take(up, inner, width)


def take_feed(tensors: Tensors, at: str, norm: Rms | None, inner: int, width: int) -> FeedForward:
    """A feed-forward of the given width, as in Llama."""
    down = tensors.take(f"{at}_down.weight", width, inner)
    return FeedForward(norm, take_gates(tensors, at, inner, width), "silu", Output(down))


Attentions = Callable[[int, SelfAttention], SelfAttention]


def build(source: DenseFile, form: Form, attentions: Attentions | None = None) -> Transformer:
    """The model described by a file and a form. `attentions` replaces the attention of some layers."""
    file, tensors = source.file, source.tensors
    if file.int(f"{source.arch}.expert_count", default=0):
        raise UnsupportedModel(f"{file.path}: '{source.arch}' with experts is not supported; use a dense model")
    ends, attending = source.ends(form), source.attentions(form)
    if attentions is not None:
        attending = tuple(attentions(i, attention) for i, attention in enumerate(attending))
    feeds = tuple(source.feed(form, i) for i in range(source.hyper.layers))
    tensors.refuse_the_rest()
    return Transformer(ends, tuple(tensors.taken), attending, form.parallel, feeds)


def read_hyper(file: GGUFFile, arch: str, tensors: Tensors, head_blocks: int = 0) -> Hyper:
    """The sizes in the metadata; raises BadFile if they contradict each other."""
    blocks = file.int(f"{arch}.block_count", low=1, high=1024)
    layers = blocks - heads_after(file, arch) + head_blocks
    tensors.skip_blocks(range(layers, blocks))  # blocks that predict further tokens
    width = file.int(f"{arch}.embedding_length", low=1, high=1 << 16)
    heads = by_layer(file, f"{arch}.attention.head_count", layers, 1 << 12)
    size = file.int(f"{arch}.attention.key_length", low=1, high=1 << 12, default=width // heads[0])
    value = file.int(f"{arch}.attention.value_length", low=1, high=1 << 12, default=size)
    kv_heads = by_layer(file, f"{arch}.attention.head_count_kv", layers, max(heads), default=heads)
    for count, of_kv in zip(heads, kv_heads, strict=True):
        tensors.check_divides(f"{arch}.attention.head_count_kv", of_kv, count)
    for found in (size, value):
        if not SMALLEST_HEAD <= found <= LARGEST_HEAD:
            known = f"{SMALLEST_HEAD} to {LARGEST_HEAD}"
            raise UnsupportedModel(f"{file.path}: heads of size {found} are not supported; known: {known}")
    dense = (0,) * layers if f"{arch}.expert_feed_forward_length" in file.metadata else None  # no layer is dense
    return Hyper(
        layers,
        width,
        by_layer(file, f"{arch}.feed_forward_length", layers, 1 << 20, default=dense),
        heads,
        kv_heads,
        size,
        value,
        vocabulary=tensors.dimension("token_embd.weight", 0),
        eps=read_eps(file, arch),
        context=file.int(f"{arch}.context_length", low=1, high=LONGEST_CONTEXT),
        window=file.int(f"{arch}.attention.sliding_window", low=0, high=LONGEST_CONTEXT, default=0),
    )


def heads_after(file: GGUFFile, arch: str) -> int:
    """How many of the blocks, the last ones, are heads that predict further tokens."""
    blocks = file.int(f"{arch}.block_count", low=1, high=1024)
    return file.int(f"{arch}.nextn_predict_layers", low=0, high=blocks - 1, default=0)


def read_eps(file: GGUFFile, arch: str) -> float:
    """The eps of the norms, which a file may store under the key of layer norms."""
    rms, layer = (f"{arch}.attention.layer_norm_{kind}epsilon" for kind in ("rms_", ""))
    return file.float(rms if rms in file.metadata or layer not in file.metadata else layer, *EPS)


def floats_by_layer(
    file: GGUFFile, key: str, layers: int, low: float, high: float, default: float | None = None
) -> list[float]:
    """A number for each layer; the metadata has one per layer or for all. Required without a default."""
    if not isinstance(file.metadata.get(key), np.ndarray):
        return [file.float(key, low, high, default=REQUIRED if default is None else default)] * layers
    numbers = [float(number) for number in file.floats(key)[:layers]]
    if len(numbers) < layers or not all(low <= number <= high for number in numbers):
        expected = f"a number from {low} to {high} for each of {layers} layers"
        raise Tensors(file).bad(f"metadata key '{key}'", str(numbers)[:60], expected)
    return numbers


def clamps_of(limits: Sequence[float], how: ClampedSwiglu) -> list[Glu]:
    """The gated activation `how` with each of these limits; 0 is none."""
    return [replace(how, limit=limit) if limit else "silu" for limit in limits]


def by_layer(
    file: GGUFFile, key: str, layers: int, high: int, *, default: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """A number for each layer; the metadata has one per layer or one for all."""
    if key not in file.metadata and default is not None:
        return default
    if not isinstance(file.metadata.get(key), np.ndarray):
        return (file.int(key, low=1, high=high),) * layers
    numbers = tuple(int(number) for number in file.ints(key)[:layers])
    if len(numbers) < layers or not all(1 <= number <= high for number in numbers):
        found, expected = str(list(numbers))[:60], f"a number from 1 to {high} for each of {layers} layers"
        raise UnsupportedModel(f"{file.path}: metadata key '{key}': found {found}, expected {expected}")
    return numbers
