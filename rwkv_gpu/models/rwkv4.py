"""RWKV-4: each channel averages its values so far, with exponentially decaying weights.

The channel mix is that of RWKV-6.
"""

from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Ops, StackedVectors, State, Tensor, Weight
from .layered import Ends
from .rwkv6 import ChannelMix, channel_mix, take_channel_mix
from .rwkv7 import Norm, Recurrent, take_mix, take_norm
from .tensors import EPS, Tensors


@dataclass(frozen=True)
class TimeMix:
    """Parameters and states of one time mix."""

    norm: Norm
    mix: StackedVectors  # [3, D], for r, k, v
    receptance: Weight  # [D, D]
    key: Weight  # [D, D]
    value: Weight  # [D, D]
    output: Weight  # [D, D]
    vectors: StackedVectors  # [2, D]: the logarithm of the decay, and the bonus
    shift: State  # [D]
    wkv: State  # [3, D]


@dataclass(frozen=True)
class RWKV4(Recurrent):
    """A model: a time mix and a channel mix in each layer."""

    eps: float
    blocks: tuple[tuple[TimeMix, ChannelMix], ...]

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - layers see x alone
        for i, (p, channel) in enumerate(self.blocks):
            with g.layer(i):
                mixed = g.norm_shift_mix(x, p.norm.weight, p.norm.bias, self.eps, p.mix, p.shift)
                r, k, v = g.linears(mixed, [p.receptance, p.key, p.value], then=["sigmoid", "none", "none"])
                x = g.linear(g.wkv4(r, k, v, p.vectors, p.wkv), p.output, add=x)
                x = channel_mix(g, channel, x, self.eps, 1.0)
        return x

    @property
    def states(self) -> list[State]:
        """The recurrent states of a sequence: 3 for each layer."""
        every = ((time.wkv, time.shift, channel.shift) for time, channel in self.blocks)
        return [state for states in every for state in states]


def load(file: GGUFFile) -> RWKV4:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    tensors = Tensors(file)
    layers = file.int("rwkv4.block_count", low=1, high=1024)
    width = file.int("rwkv4.embedding_length", low=1, high=1 << 16)
    inner = file.int("rwkv4.feed_forward_length", low=1, high=1 << 20)
    eps = file.float("rwkv4.attention.layer_norm_epsilon", *EPS)
    vocabulary = tensors.dimension("token_embd.weight", 0)
    ends = Ends(
        embedding=tensors.take("token_embd.weight", vocabulary, width),
        embedding_norm=take_norm(tensors, "token_embd_norm", width).at(eps),
        last_norm=take_norm(tensors, "output_norm", width).at(eps),
        head=tensors.take("output.weight", vocabulary, width),
        context=0,
    )
    blocks = tuple((_time_mix(tensors, i, width), take_channel_mix(tensors, i, width, inner)) for i in range(layers))
    tensors.refuse_the_rest()
    return RWKV4(ends, tuple(tensors.taken), eps, blocks)


def _time_mix(tensors: Tensors, i: int, width: int) -> TimeMix:
    at = f"blk.{i}.time_mix"
    matrices = {name: tensors.take(f"{at}_{name}.weight", width, width) for name in ("receptance", "key", "value")}
    return TimeMix(
        norm=take_norm(tensors, f"blk.{i}.attn_norm", width),
        mix=take_mix(tensors, f"{at}_lerp", width, "rkv"),
        **matrices,
        output=tensors.take(f"{at}_output.weight", width, width),
        vectors=tensors.join(f"{at}_vectors", width, f"{at}_decay.weight", f"{at}_first.weight"),
        shift=State(f"blk.{i}.shift_time", (width,)),
        wkv=State(f"blk.{i}.wkv", (3, width)),
    )
