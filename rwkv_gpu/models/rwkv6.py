"""RWKV-6: a time mix and a channel mix in each layer. The mix of a row with the previous one depends on both rows."""

from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Activation, Ops, StackedVectors, State, Tensor, Weight
from .layered import Ends
from .rwkv7 import HEAD_EPS, Lora, Norm, Recurrent, read_head_size, take_mix, take_norm
from .tensors import EPS, Tensors

PARTS = 5  # number of mixes of a row: w, k, v, r and the gate


@dataclass(frozen=True)
class DataLerp:
    """Parameters and state of a data-dependent lerp with the previous row."""

    first: StackedVectors  # [1, D], the mix of the rows that the LoRA reads
    mix: StackedVectors  # [5, D], for w, k, v, r, g
    down: Weight  # [5 · rank, D]
    up: Weight  # [5 · D · rank]
    shift: State  # [D]; in QRWKV, where no norm is fused with it, [1, D]


@dataclass(frozen=True)
class TimeMix:
    """Parameters and states of one time mix, after its norm."""

    lerp: DataLerp
    receptance: Weight  # [D, D]
    key: Weight  # [KH · N, D]
    value: Weight  # [KH · N, D]
    gate: Weight  # [D, D]
    output: Weight  # [D, D]
    biases: tuple[Weight | None, ...]  # biases of receptance, key, value and gate
    gate_then: Activation
    decay: Lora
    vectors: StackedVectors | None  # [3, D]: bonus, norm weight and bias; QRWKV has neither bonus nor norm
    wkv: State  # [H, N, N]


@dataclass(frozen=True)
class ChannelMix:
    """Parameters and state of one channel mix."""

    norm: Norm
    mix: StackedVectors  # [2, D]: for the key and the receptance
    key: Weight  # [inner, D]
    value: Weight  # [D, inner]
    receptance: Weight  # [D, D]
    shift: State  # [D]


@dataclass(frozen=True)
class Layer:
    """One layer.

    The file's matrices assume that the residual stream is halved every few layers. Here the stream keeps its size, and
    what is added to it is multiplied by `scale` instead.
    """

    norm: Norm
    time: TimeMix
    channel: ChannelMix
    scale: float


@dataclass(frozen=True)
class RWKV6(Recurrent):
    """A model: a time mix and a channel mix in each layer."""

    eps: float
    blocks: tuple[Layer, ...]

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - layers see x alone
        for i, layer in enumerate(self.blocks):
            eps = self.eps * layer.scale**2  # eps for a stream that is larger by this scale
            with g.layer(i):
                norm, lerp = layer.norm, layer.time.lerp
                first, xx, before = g.norm_shift_mix(x, norm.weight, norm.bias, eps, lerp.first, lerp.shift, rows=True)
                x = time_mix(g, layer.time, first, xx, before, x, layer.scale)
                x = channel_mix(g, layer.channel, x, eps, layer.scale)
        return x

    @property
    def states(self) -> list[State]:
        """The recurrent states of a sequence: 3 for each layer."""
        every = ((layer.time.wkv, layer.time.lerp.shift, layer.channel.shift) for layer in self.blocks)
        return [state for states in every for state in states]


def time_mix(
    g: Ops[Tensor], p: TimeMix, first: Tensor, xx: Tensor, before: Tensor, x: Tensor, scale: float = 1.0
) -> Tensor:
    """x + scale · W_o wkv(rows of xx, mixed with the previous rows as `first` determines)"""
    low = g.linear(first, p.lerp.down, then="tanh")  # [T, 5 · rank]
    xw, xk, xv, xr, xg = g.lerp(xx, before, p.lerp.mix, low=low, up=p.lerp.up)
    r, k, v, gate, low = g.linears(
        [xr, xk, xv, xg, xw],
        [p.receptance, p.key, p.value, p.gate, p.decay.down],
        then=["none", "none", "none", p.gate_then, p.decay.inner],
        bias=[*p.biases, None],
    )
    w = g.linear(low, p.decay.up, then=p.decay.outer, bias=p.decay.bias)
    y = g.wkv6(r, w, k, v, gate, p.wkv, vectors=p.vectors, eps=HEAD_EPS)
    return g.linear(y, p.output, add=x, scale=scale)


def channel_mix(g: Ops[Tensor], p: ChannelMix, x: Tensor, eps: float, scale: float) -> Tensor:
    """x + scale · sigmoid(W_r xr) · W_v relu(W_k xk)²"""
    xk, xr = g.norm_shift_mix(x, p.norm.weight, p.norm.bias, eps, p.mix, p.shift)
    k, r = g.linears([xk, xr], [p.key, p.receptance], then=["relu2", "sigmoid"])
    return g.scale_rows(g.linear(k, p.value, scale=scale), r, add=x)


def load(file: GGUFFile) -> RWKV6:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    tensors = Tensors(file)
    layers = file.int("rwkv6.block_count", low=1, high=1024)
    width = file.int("rwkv6.embedding_length", low=1, high=1 << 16)
    inner = file.int("rwkv6.feed_forward_length", low=1, high=1 << 20)
    size = read_head_size(file, "rwkv6", width, tensors)
    every = file.int("rwkv6.rescale_every_n_layers", low=0, high=1024, default=0)
    file.int("rwkv6.token_shift_count", low=2, high=2, default=2)
    vocabulary = tensors.dimension("token_embd.weight", 0)

    def scale(i: int) -> float:
        return 2.0 ** (i // every) if every else 1.0

    eps = file.float("rwkv6.attention.layer_norm_epsilon", *EPS)
    embedding = tensors.take("token_embd.weight", vocabulary, width)
    first_norm = take_norm(tensors, "token_embd_norm", width).at(eps)
    blocks = tuple(
        Layer(
            take_norm(tensors, f"blk.{i}.attn_norm", width),
            take_time_mix(tensors, i, width, size, own=True),
            take_channel_mix(tensors, i, width, inner),
            scale(i),
        )
        for i in range(layers)
    )
    last_norm = take_norm(tensors, "output_norm", width).at(eps * scale(layers) ** 2)
    head = tensors.take("output.weight", vocabulary, width)
    tensors.refuse_the_rest()
    ends = Ends(embedding, last_norm, head, context=0, embedding_norm=first_norm)
    return RWKV6(ends, tuple(tensors.taken), eps, blocks)


def take_time_mix(
    tensors: Tensors, i: int, width: int, size: int, *, own: bool, key_heads: int | None = None
) -> TimeMix:
    """A time mix of RWKV-6 (if `own`: with bonus and norm), or of QRWKV (with biases and fewer key heads)."""
    at, heads = f"blk.{i}.time_mix", width // size
    keys = size * (key_heads or heads)
    rank = tensors.dimension(f"{at}_w2.weight", 2, 3)
    decay = tensors.dimension(f"{at}_decay_w1.weight", 0)

    def bias(name: str) -> Weight | None:
        return tensors.find(f"{at}_{name}.bias", keys if name in ("key", "value") else width)

    return TimeMix(
        lerp=DataLerp(
            first=tensors.join(f"{at}_lerp_first", width, f"{at}_lerp_x.weight"),
            mix=take_mix(tensors, f"{at}_lerp", width, "wkvrg"),
            down=tensors.take(f"{at}_w1.weight", PARTS * rank, width),
            up=tensors.take_flat(f"{at}_w2.weight", PARTS, width, rank),
            shift=State(f"blk.{i}.shift_time", (width,) if own else (1, width)),
        ),
        receptance=tensors.take(f"{at}_receptance.weight", width, width),
        key=tensors.take(f"{at}_key.weight", keys, width),
        value=tensors.take(f"{at}_value.weight", keys, width),
        gate=tensors.take(f"{at}_gate.weight", width, width),
        output=tensors.take(f"{at}_output.weight", width, width),
        biases=(bias("receptance"), bias("key"), bias("value"), None),
        gate_then="silu" if own else "sigmoid",
        decay=Lora(
            down=tensors.take(f"{at}_decay_w1.weight", decay, width),
            up=tensors.take(f"{at}_decay_w2.weight", width, decay),
            bias=tensors.take(f"{at}_decay.weight", width),
            inner="tanh",
            outer="decay6",
        ),
        vectors=tensors.join(
            f"{at}_vectors", width, (f"{at}_first.weight", (heads, size)), f"{at}_ln.weight", f"{at}_ln.bias"
        )
        if own
        else None,
        wkv=State(f"blk.{i}.wkv", (heads, size, size)),
    )


def take_channel_mix(tensors: Tensors, i: int, width: int, inner: int) -> ChannelMix:
    """A channel mix of RWKV-6, RWKV-5 or RWKV-4."""
    at = f"blk.{i}.channel_mix"
    return ChannelMix(
        norm=take_norm(tensors, f"blk.{i}.attn_norm_2", width),
        mix=tensors.join(f"{at}_lerp", width, f"{at}_lerp_k.weight", f"{at}_lerp_r.weight"),
        key=tensors.take(f"{at}_key.weight", inner, width),
        value=tensors.take(f"{at}_value.weight", width, inner),
        receptance=tensors.take(f"{at}_receptance.weight", width, width),
        shift=State(f"blk.{i}.shift_channel", (width,)),
    )
