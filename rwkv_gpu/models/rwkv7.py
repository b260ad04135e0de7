"""RWKV-7: each layer is a time mix (a recurrence over one state matrix per head) and a channel mix.

RWKV-7a and 7b add tables by token and a small attention: see `rwkv7_deep`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Activation, Cache, LayerNorm, Mixed, Ops, StackedVectors, State, Tensor, Weight
from .layered import Ends, Layered
from .rwkv7_deep import (
    DeepAttention,
    DeepEmbed,
    deep_attention,
    deepened,
    find_deep_attention,
    find_deep_embed,
)
from .tensors import EPS, LONGEST_CONTEXT, Tensors

HEAD_STEP, LARGEST_HEAD = 16, 256  # sizes that the kernels support
HEAD_EPS = 64e-5  # eps of the norm over a head; no file gives it


@dataclass(frozen=True)
class Hyper:
    """The sizes of a model."""

    layers: int
    width: int  # D
    inner: int  # inner width of the channel mix
    head_size: int  # N
    vocabulary: int
    eps: float
    context: int  # length of its training texts in tokens; not a limit

    @property
    def heads(self) -> int:
        """H"""
        return self.width // self.head_size


@dataclass(frozen=True)
class Norm:
    """Parameters of a layer norm."""

    weight: Weight  # [D]
    bias: Weight  # [D]

    def at(self, eps: float) -> LayerNorm:
        """The norm as an argument of an op."""
        return LayerNorm(self.weight, self.bias, eps)


@dataclass(frozen=True)
class Lora:
    """y = outer(up inner(down x) + bias)"""

    down: Weight  # [rank, D]
    up: Weight  # [D, rank]
    bias: Weight | None  # [D]
    inner: Activation
    outer: Activation


@dataclass(frozen=True)
class TimeMix:
    """Parameters and states of one time mix."""

    norm: Norm | Weight  # a layer norm; in ARWKV an RMS norm
    mix: StackedVectors  # [6, D] for r, w, k, v, a, g; [5, D] without a gate
    receptance: Weight  # [D, D]
    key: Weight  # [D, D]
    value: Weight  # [D, D]
    output: Weight  # [D, D]
    w: Lora
    a: Lora
    gate: Lora | None
    v: Lora | None  # layers after the first
    vectors: StackedVectors  # [5, D]: k_k, k_a, r_k, norm weight and bias; [3, D] without a norm
    shift: State  # [D]
    wkv: State  # [H, N, N]


@dataclass(frozen=True)
class ChannelMix:
    """Parameters and state of one channel mix."""

    norm: Norm
    mix: StackedVectors  # [1, D]
    key: Weight  # [inner, D]
    value: Weight  # [D, inner]
    shift: State  # [D]
    deep: DeepEmbed | None = None  # used in RWKV-7a and 7b


@dataclass(frozen=True)
class Recurrent(Layered):
    """A model without attention: the state of a sequence has a fixed size, and its length is unlimited."""

    @property
    def caches(self) -> list[Cache]:
        """Empty: there are no keys and values."""
        return []

    @property
    def context(self) -> None:
        """None: the length is unlimited."""


@dataclass(frozen=True)
class RWKV7(Layered):
    """A model: a time mix and a channel mix in each layer; in RWKV-7b an attention next to each time mix."""

    hyper: Hyper
    blocks: tuple[tuple[TimeMix, ChannelMix, DeepAttention | None], ...]

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        eps, v_first = self.hyper.eps, None
        for i, (time, channel, attention) in enumerate(self.blocks):
            with g.layer(i):
                seen = None if attention is None else deep_attention(g, attention, x, ids)
                x, v_first = time_mix(g, time, x, v_first, eps)
                x = x if seen is None else g.add(x, seen)
                x = channel_mix(g, channel, x, eps, ids)
        return x

    @property
    def states(self) -> list[State]:
        """The recurrent states of a sequence: 3 for each layer, and 3 for each attention."""
        own = [state for i in range(self.hyper.layers) for state in layer_states(self.hyper, i)]
        return own + [state for *_, attention in self.blocks if attention for state in attention.states]

    @property
    def caches(self) -> list[Cache]:
        """Keys and values of RWKV-7b; others have none."""
        return [attention.cache for *_, attention in self.blocks if attention]

    @property
    def context(self) -> int | None:
        """None (unlimited), except in RWKV-7b."""
        return self.hyper.context if self.caches else None


def time_mix(g: Ops[Tensor], p: TimeMix, x: Tensor, v_first: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """x + W_o · wkv(lerp(norm(x), previous, mu)), and v of the first layer"""
    assert isinstance(p.norm, Norm)
    mixed = g.norm_shift_mix(x, p.norm.weight, p.norm.bias, eps, p.mix, p.shift)
    return mixed_rows(g, p, mixed, x, v_first)


def mixed_rows(
    g: Ops[Tensor], p: TimeMix, mixed: Sequence[Tensor], x: Tensor, v_first: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x + W_o · wkv of rows that are mixed with those before, and v of the first layer"""
    xr, xw, xk, xv, xa, *xg = mixed

    # All products of the mixed x run together: r, k, v and the first half of each LoRA. Then all second halves.
    loras = [lora for lora in (p.w, p.a, p.gate, p.v) if lora]
    r, k, v, *lows = g.linears(
        [xr, xk, xv, xw, xa, *xg, *([xv] if p.v else [])],
        [p.receptance, p.key, p.value, *(lora.down for lora in loras)],
        then=["none", "none", "none", *(lora.inner for lora in loras)],
    )
    w, a, *gates = g.linears(
        lows,
        [lora.up for lora in loras],
        then=[lora.outer for lora in loras],
        bias=[lora.bias for lora in loras],
    )
    gate = gates.pop(0) if p.gate else None
    v_gate = gates.pop(0) if p.v else None

    y = g.time_mix(Mixed(r, w, k, v, a, gate, v_gate, v_first if p.v else None), p.vectors, HEAD_EPS, p.wkv)
    return g.linear(y, p.output, add=x), v if v_first is None else v_first


def channel_mix(g: Ops[Tensor], p: ChannelMix, x: Tensor, eps: float, ids: Tensor) -> Tensor:
    """x + W_v · relu(W_k · lerp(norm(x), previous, mu_k))²; a DeepEmbed, if present, scales the input of W_v"""
    norm = p.norm.weight, p.norm.bias, eps
    if p.deep is None:
        [xk] = g.norm_shift_mix(x, *norm, p.mix, p.shift)
        return g.linear(g.linear(xk, p.key, then="relu2"), p.value, add=x)
    xk, xx, _ = g.norm_shift_mix(x, *norm, p.mix, p.shift, rows=True)
    k = deepened(g, p.deep, g.linear(xk, p.key, then="relu2"), xx, ids)
    return g.linear(k, p.value, add=x)


def layer_states(hyper: Hyper, i: int) -> tuple[State, State, State]:
    """The matrices of the time mix, and the last input of each mix."""
    return (
        State(f"blk.{i}.wkv", (hyper.heads, hyper.head_size, hyper.head_size)),
        State(f"blk.{i}.shift_time", (hyper.width,)),
        State(f"blk.{i}.shift_channel", (hyper.width,)),
    )


def load(file: GGUFFile) -> RWKV7:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    tensors = Tensors(file)
    hyper = read_hyper(file, tensors)
    shape = hyper.vocabulary, hyper.width
    embedding = tensors.take("token_embd.weight", *shape)
    first_norm = take_norm(tensors, "token_embd_norm", hyper.width).at(hyper.eps)
    blocks = tuple(
        (
            _time_mix(tensors, hyper, i),
            _channel_mix(tensors, hyper, i),
            find_deep_attention(tensors, i, hyper.vocabulary, hyper.width, hyper.eps),
        )
        for i in range(hyper.layers)
    )
    last_norm = take_norm(tensors, "output_norm", hyper.width).at(hyper.eps)
    ends = Ends(embedding, last_norm, tensors.take("output.weight", *shape), hyper.context, embedding_norm=first_norm)
    tensors.skip(*(f"blk.0.time_mix_v{n}.weight" for n in range(3)))  # unused copies of `a`: the first layer mixes no v
    tensors.refuse_the_rest()
    return RWKV7(ends, tuple(tensors.taken), hyper, blocks)


def read_hyper(file: GGUFFile, tensors: Tensors) -> Hyper:
    """The sizes in the metadata; raises BadFile if they contradict each other."""
    file.int("rwkv7.token_shift_count", low=2, high=2, default=2)
    width = file.int("rwkv7.embedding_length", low=1, high=1 << 16)
    return Hyper(
        layers=file.int("rwkv7.block_count", low=1, high=1024),
        width=width,
        inner=file.int("rwkv7.feed_forward_length", low=1, high=1 << 20),
        head_size=read_head_size(file, "rwkv7", width, tensors),
        vocabulary=tensors.dimension("token_embd.weight", 0),
        eps=file.float("rwkv7.attention.layer_norm_epsilon", *EPS),
        context=file.int("rwkv7.context_length", low=1, high=LONGEST_CONTEXT, default=1 << 20),
    )


def read_head_size(file: GGUFFile, arch: str, width: int, tensors: Tensors) -> int:
    """The size of a head."""
    size = file.int(f"{arch}.wkv.head_size", low=1, high=1 << 16)
    tensors.check_heads(size, HEAD_STEP, LARGEST_HEAD)
    if width % size:
        what = f"metadata key '{arch}.embedding_length'"
        raise tensors.bad(what, str(width), f"a multiple of the head size {size}")
    return size


def take_norm(tensors: Tensors, name: str, width: int) -> Norm:
    """The parameters of a layer norm."""
    return Norm(tensors.take(f"{name}.weight", width), tensors.take(f"{name}.bias", width))


def take_time_mix(tensors: Tensors, i: int, norm: Norm | Weight, shift: State, wkv: State) -> TimeMix:
    """The parameters of a time mix, with a gate and a norm of heads if the file has them."""
    at, width = f"blk.{i}.time_mix", shift.shape[-1]
    gated = f"{at}_g1.weight" in tensors or f"{at}_g2.weight" in tensors
    normed = (f"{at}_ln.weight", f"{at}_ln.bias") if f"{at}_ln.weight" in tensors or isinstance(norm, Norm) else ()
    return TimeMix(
        norm=norm,
        mix=take_mix(tensors, f"{at}_lerp", width, "rwkvag" if gated else "rwkva"),
        receptance=tensors.take(f"{at}_receptance.weight", width, width),
        key=tensors.take(f"{at}_key.weight", width, width),
        value=tensors.take(f"{at}_value.weight", width, width),
        output=tensors.take(f"{at}_output.weight", width, width),
        w=take_lora(tensors, f"{at}_w", width, "tanh", "decay"),
        a=take_lora(tensors, f"{at}_a", width, "none", "sigmoid"),
        gate=take_lora(tensors, f"{at}_g", width, "sigmoid", "none", biased=False) if gated else None,
        v=take_lora(tensors, f"{at}_v", width, "none", "sigmoid") if i else None,
        vectors=tensors.join(
            f"{at}_vectors", width, *(f"{at}_{v}" for v in ("k_k.weight", "k_a.weight", "r_k.weight")), *normed
        ),
        shift=shift,
        wkv=wkv,
    )


def _time_mix(tensors: Tensors, hyper: Hyper, i: int) -> TimeMix:
    wkv, shift, _ = layer_states(hyper, i)
    return take_time_mix(tensors, i, take_norm(tensors, f"blk.{i}.attn_norm", hyper.width), shift, wkv)


def _channel_mix(tensors: Tensors, hyper: Hyper, i: int) -> ChannelMix:
    at = f"blk.{i}.channel_mix"
    return ChannelMix(
        norm=take_norm(tensors, f"blk.{i}.attn_norm_2", hyper.width),
        mix=tensors.join(f"{at}_lerp", hyper.width, f"{at}_lerp_k.weight"),
        key=tensors.take(f"{at}_key.weight", hyper.inner, hyper.width),
        value=tensors.take(f"{at}_value.weight", hyper.width, hyper.inner),
        shift=layer_states(hyper, i)[2],
        deep=find_deep_embed(tensors, i, hyper.vocabulary, hyper.width, hyper.inner),
    )


def take_mix(tensors: Tensors, name: str, width: int, which: str) -> StackedVectors:
    """The vectors of a lerp, from one tensor, or from one per letter in older files."""
    if f"{name}_fused.weight" in tensors:
        return tensors.join(name, width, (f"{name}_fused.weight", len(which)))
    return tensors.join(name, width, *(f"{name}_{letter}.weight" for letter in which))


def take_lora(
    tensors: Tensors, name: str, width: int, inner: Activation, outer: Activation, *, biased: bool = True
) -> Lora:
    """The parameters of a LoRA, whose rank is that of the tensors."""
    rank = tensors.dimension(f"{name}1.weight", 0)
    return Lora(
        down=tensors.take(f"{name}1.weight", rank, width),
        up=tensors.take(f"{name}2.weight", width, rank),
        bias=tensors.take(f"{name}0.weight", width) if biased else None,
        inner=inner,
        outer=outer,
    )
