"""Qwen3.5, Qwen3.6, Qwen3-Next and Clef: most layers are gated delta nets, every fourth is gated attention.

For text, RoPE rotates a part of each head in NeoX order; the position sections of the file are for images only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..gguf.file import GGUFFile
from ..ops.vocabulary import (
    Activation,
    Attention,
    Cache,
    DeltaRule,
    HeadNorms,
    HeadRows,
    Ops,
    RowRange,
    State,
    Tensor,
    Weight,
)
from .block_index import BlockIndex, chosen_blocks
from .experts import ExpertSizes
from .hybrid import Block, Hybrid, HybridFile, norm_before
from .tensors import Tensors

OF_DECISIONS = "decision.", "dec.blk.", "token_types."  # prefixes of Clef's head, which runs on the host
INTERVAL = 4  # every fourth layer has full attention, unless the file states another interval
LARGEST_STATE = 256  # maximum size of a head that the kernels support


@dataclass(frozen=True)
class DeltaNet:
    """add + W_o · delta_rule(silu(conv(W_qkv h)), W_beta h, W_alpha h, W_z h), h = norm(x)"""

    norm: Weight | None  # [D]; None if x is normed already
    qkv: Weight  # [2 · KH · N + H · N, D]
    gate: Weight  # [H · N, D]
    rates: tuple[Weight, ...]  # beta and decay, [H, D] each, or both in one, [2 · H, D]
    conv: Weight  # weights for the channels of qkv, [C · taps]
    rule: DeltaRule
    output: Weight  # [D, H · N]
    past: State  # [taps - 1, C]
    state: State  # [H, N, N]
    caches = ()

    @property
    def states(self) -> Sequence[State]:
        return self.state, self.past

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor | None, eps: float) -> Tensor:
        weights = [self.qkv, self.gate, *self.rates]
        qkv, gate, *rates = g.linears([x] * len(weights), weights, norm=norm_before(self.norm, eps))
        mixed = g.conv1d(qkv, self.conv, self.past, then="silu")
        y = g.gated_delta_rule([mixed], rates[0], rates[-1], gate, self.rule, self.state)
        return g.linear(y, self.output, add=add)


@dataclass(frozen=True)
class GatedAttention:
    """add + W_o · (attention(W_q h, W_k h, W_v h) · sigmoid(W_g h)), h = norm(x)"""

    norm: Weight | None  # [D]; None if x is normed already
    q: Weight  # [H · N, D]
    k: Weight  # [KV · N, D]
    v: Weight  # [KV · N, D]
    gate: Weight  # [H · N, D]
    biases: tuple[Weight | None, ...]  # biases of q, k, v and the gate
    output: Weight  # [D, H · N]
    cache: Cache
    how: Attention
    index: BlockIndex | None = None  # chooses the positions that a row sees

    @property
    def states(self) -> Sequence[State]:
        return self.index.states if self.index else ()

    @property
    def caches(self) -> Sequence[Cache]:
        return (self.cache, self.index.cache) if self.index else (self.cache,)

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor | None, eps: float) -> Tensor:
        weights, biases = [self.q, self.k, self.v, self.gate], self.biases
        then: list[Activation] = ["none", "none", "none", "sigmoid"]
        if self.index:
            weights, biases = [*weights, self.index.q, self.index.k], (*biases, None, None)
            then += "none", "none"
        norm = norm_before(self.norm, eps)
        q, k, v, gate, *index = g.linears([x] * len(weights), weights, then=then, bias=biases, norm=norm)
        chosen = chosen_blocks(g, self.index, *index) if self.index else None
        return g.linear(g.mul(g.attention(q, k, v, self.cache, self.how, chosen=chosen), gate), self.output, add=add)

    def write(self, g: Ops[Tensor], x: Tensor, eps: float) -> None:
        """Writes the keys and values of norm(x)."""
        k, v = g.linears([x] * 2, [self.k, self.v], bias=self.biases[1:3], norm=norm_before(self.norm, eps))
        g.write_keys(k, v, self.cache, self.how)


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    recurrent, layers = source.recurrent_layers(INTERVAL), range(source.sizes.layers)
    experts = source.read_experts(normalise=True) if source.has_experts else None
    heads = source.heads
    kv_heads, size = source.only_kv_heads(heads), source.head_size(heads)
    source.tensors.check_divides(f"{source.arch}.attention.head_count_kv", kv_heads, heads)
    how = Attention(heads, source.rope("neox", size), scale=size**-0.5)
    mix = [
        take_delta_net(source, i) if recurrent[i] else take_gated_attention(source, how, kv_heads, size, i)
        for i in layers
    ]

    def of_head(source: HybridFile, i: int) -> Sequence[Block]:
        return take_gated_attention(source, how, kv_heads, size, i), _take_feed(source, experts, i)

    blocks = list(zip(mix, [_take_feed(source, experts, i) for i in layers], strict=True))
    if source.arch == "clef":  # llm/decision_head.py reads the head, and rows of the output
        source.tensors.skip("output.weight", *(name for name in file.tensors if name.startswith(OF_DECISIONS)))
        return source.model(blocks, headless=True)
    return source.model(blocks, head_layer=of_head)


def take_gated_attention(
    source: HybridFile, how: Attention, kv_heads: int, size: int, i: int, *, normed: bool = True
) -> GatedAttention:
    """Takes gated attention, with its norm if it is `normed`. Rows of q and of the gate alternate, head by head."""
    at, tensors, sizes, width = f"blk.{i}.attn", source.tensors, source.sizes, source.sizes.width
    of_q, of_gate = (HeadRows(how.heads, 2 * size, first, size) for first in (0, size))
    rows = 2 * how.heads * size, kv_heads * size, kv_heads * size
    whole, k, v = _take_qkv(tensors, at, rows, width)
    norms = HeadNorms(sizes.eps, tensors.take(f"{at}_q_norm.weight", size), tensors.take(f"{at}_k_norm.weight", size))
    return GatedAttention(
        norm=source.norm(i) if normed else None,
        q=tensors.rows_of_heads(f"{at}_q", whole, of_q, width),
        k=k,
        v=v,
        gate=tensors.rows_of_heads(f"{at}_q_gate", whole, of_gate, width),
        biases=_take_biases(tensors, at, rows, of_q, of_gate),
        output=tensors.take(f"{at}_output.weight", width, how.heads * size),
        cache=Cache(f"blk.{i}.kv", kv_heads, size),
        how=replace(how, norms=norms),
    )


def _take_qkv(tensors: Tensors, at: str, rows: Sequence[int], width: int) -> tuple[str | RowRange, Weight, Weight]:
    """Takes q with its gate, k and v; all may be rows of one matrix."""
    whole, names = f"{at}_qkv.weight", [f"{at}_{name}.weight" for name in "qkv"]
    if whole not in tensors:
        k, v = (tensors.take(name, count, width) for name, count in zip(names[1:], rows[1:], strict=True))
        return names[0], k, v
    q, *others = tensors.split(whole, width, *zip(names, rows, strict=True))
    tensors.keep(*others)
    return q, others[0], others[1]


def _take_biases(
    tensors: Tensors, at: str, rows: Sequence[int], of_q: HeadRows, of_gate: HeadRows
) -> tuple[Weight | None, ...]:
    """Takes the biases of q, k, v and the gate that the file has."""
    whole, names = f"{at}_qkv.bias", [f"{at}_{name}.bias" for name in "qkv"]
    q: str | RowRange | None = names[0] if names[0] in tensors else None
    others: list[Weight | None]
    if whole in tensors:
        q, k, v = tensors.split(whole, 0, *zip(names, rows, strict=True))
        tensors.keep(k, v)
        others = [k, v]
    else:
        others = [tensors.find(name, count) for name, count in zip(names[1:], rows[1:], strict=True)]
    if q is None:
        return None, *others, None
    parts = ("q.rows", of_q), ("q_gate", of_gate)
    q_bias, gate_bias = (tensors.numbers_of_heads(f"{at}_{name}.bias", q, each) for name, each in parts)
    return q_bias, *others, gate_bias


def _take_feed(source: HybridFile, experts: ExpertSizes | None, i: int) -> Block:
    """Takes the feed-forward. The norm before it is named as one after attention."""
    norm = "post_attention_norm"
    if experts is None:
        return source.feed(i, source.inner, f"{norm}.weight")
    return source.experts(i, experts, norm=norm, shared=True)


def take_delta_net(source: HybridFile, i: int, *, normed: bool = True, then: Activation = "silu") -> DeltaNet:
    """The delta net of a layer, with its norm if it is `normed`.

    Qwen3-Next has both rates in one tensor, and adjacent value heads share a key head.
    """
    at, tensors, sizes, width = f"blk.{i}", source.tensors, source.sizes, source.sizes.width
    size, key_heads = source.integer("ssm.state_size"), source.integer("ssm.group_count")
    tensors.check_heads(size, 16, LARGEST_STATE)
    heads = source.integer("ssm.time_step_rank", key_heads)
    tensors.check_divides(f"{source.arch}.ssm.group_count", key_heads, heads, "value heads")
    source.integer("ssm.inner_size", heads * size, heads * size)
    taps = source.integer("ssm.conv_kernel", 2, 16)
    inner, channels = heads * size, (2 * key_heads + heads) * size
    qkv, gate = _take_projections(tensors, at, (key_heads, heads, size), width)
    in_one = f"{at}.ssm_ba.weight" in tensors
    rates = ("ssm_ba",) if in_one else ("ssm_beta", "ssm_alpha")
    return DeltaNet(
        norm=source.norm(i) if normed else None,
        qkv=qkv,
        gate=gate,
        rates=tuple(tensors.take(f"{at}.{name}.weight", heads * (2 if in_one else 1), width) for name in rates),
        conv=tensors.take_flat(f"{at}.ssm_conv1d.weight", channels, taps),
        rule=DeltaRule(
            key_heads,
            grouped=source.arch == "qwen3next",
            bias=tensors.take(f"{at}.ssm_dt.bias", heads),
            rate=tensors.take(f"{at}.ssm_a", heads),
            norm=tensors.take(f"{at}.ssm_norm.weight", size),
            eps=sizes.eps,
            then=then,
        ),
        output=tensors.take(f"{at}.ssm_out.weight", width, inner),
        past=State(f"{at}.conv", (taps - 1, channels)),
        state=State(f"{at}.delta", (heads, size, size)),
    )


def _take_projections(tensors: Tensors, at: str, sizes: tuple[int, int, int], width: int) -> tuple[Weight, Weight]:
    """q, k and v, and the gate. Early files of Qwen3-Next have all in one tensor, key head by key head."""
    key_heads, heads, size = sizes
    whole, names = f"{at}.ssm_in.weight", (f"{at}.attn_qkv.weight", f"{at}.attn_gate.weight")
    if whole not in tensors:
        channels = (2 * key_heads + heads) * size
        return tensors.take(names[0], channels, width), tensors.take(names[1], heads * size, width)
    shared = heads // key_heads * size  # rows of values of a key head
    firsts = (0, size), (size, size), (2 * size, shared), (2 * size + shared, shared)
    q, k, v, gate = (HeadRows(key_heads, 2 * (size + shared), first, count) for first, count in firsts)
    return tensors.rows_of_heads(names[0], whole, q, width, k, v), tensors.rows_of_heads(names[1], whole, gate, width)
