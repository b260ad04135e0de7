"""Conformer audio towers: feed-forwards around attention with relative positions and a convolution over time.

The part of a score that depends on the distance of query and key is a sum of waves. So each head gets further numbers,
one pair per wave. A query's pairs are computed from its content, and a key's pairs are constant; RoPE rotates both by
their positions.
"""

from dataclasses import dataclass

from ..models.layered import normed
from ..models.transformer import FeedForward, attend, feed_forward, output
from ..models.transformer import Output as Branch
from ..ops.media import ANGLES
from ..ops.vocabulary import AnyNorm, Attention, Cache, Ops, Rms, State, Tensor, Weight
from .clipped import Clips, with_clips
from .towers import EMBEDDED, POSITIONS, MediaTower, Projector


@dataclass(frozen=True)
class RelativeAttention:
    """Parameters of attention whose scores depend on content and distance."""

    norm: AnyNorm
    qkv: tuple[Weight, ...]
    biases: tuple[Weight | None, ...]
    query: Weight  # [H, 2 · F + N, N]: the pairs that rotate, then the scaled query
    query_bias: Weight | None  # [H · (2 · F + N)]
    key: Weight  # [H, 2 · F + N, N]: zeros, then the key
    key_bias: Weight  # [H · (2 · F + N)]: (1, 0) for each pair
    output: Branch
    cache: Cache
    how: Attention
    size: int  # N


@dataclass(frozen=True)
class Convolution:
    """Parameters of a gated convolution over time."""

    norm: AnyNorm
    gates: Weight  # [2 · D, D]: the values, then their gates
    gates_bias: Weight | None
    taps: Weight  # [D · W]
    bias: Weight | None
    between: Rms | None
    output: Branch
    state: State | None  # last rows of a causal convolution; None: a row sees as many rows after it as before it


@dataclass(frozen=True)
class Layer:
    """One layer of a tower."""

    first: FeedForward
    attention: RelativeAttention
    convolution: Convolution
    last: FeedForward
    norm: AnyNorm | None


@dataclass(frozen=True)
class ConformerTower(MediaTower):
    """A tower over the rows of a `ConformerStem`."""

    weights: tuple[Weight, ...]
    embed: Weight  # [D, K]
    bias: Weight | None
    layers: tuple[Layer, ...]
    projector: Projector
    clips: Clips
    context: int

    @property
    def states(self) -> list[State]:
        return [layer.convolution.state for layer in self.layers if layer.convolution.state is not None]

    def outputs(self, rows: int) -> range:
        """The rows that become input of the language model: all of them."""
        return range(rows)

    def features(self, g: Ops[Tensor], ids: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - rows have no ids
        g = with_clips(g, self.clips)
        x = g.linear(g.step_input(POSITIONS), self.embed, bias=self.bias)
        for i, layer in enumerate(self.layers):
            with g.layer(i):
                x = layer_rows(g, layer, x)
        return {EMBEDDED: self.projector.project(g, g.pick(x))}


def layer_rows(g: Ops[Tensor], layer: Layer, x: Tensor) -> Tensor:
    """The rows after a layer"""
    x = feed_forward(g, layer.first, x)
    x = relative_attention(g, layer.attention, x)
    x = convolution(g, layer.convolution, x)
    return normed(g, feed_forward(g, layer.last, x), layer.norm)


def relative_attention(g: Ops[Tensor], p: RelativeAttention, x: Tensor) -> Tensor:
    """x + output(attention(q, k, v)), where q and k also hold the waves that give the part of distances"""
    q, k, v = g.linears([x, x, x], p.qkv, bias=p.biases, norm=p.norm)
    return output(g, p.output, attend_by_distance(g, p, q, k, v, g.step_input(ANGLES)), x)


def attend_by_distance(g: Ops[Tensor], p: RelativeAttention, q: Tensor, k: Tensor, v: Tensor, angles: Tensor) -> Tensor:
    """attention(q, k, v), where q and k also hold the waves that give the part of distances"""
    q, k = g.head_linear(q, p.query), g.shift_columns(g.head_linear(k, p.key), p.key_bias)
    q = q if p.query_bias is None else g.shift_columns(q, p.query_bias)
    q, k = (g.turn(y, angles, p.how.heads, "neox") for y in (q, k))
    return attend(g, q, k, v, p.cache, p.how, p.size)


def convolution(g: Ops[Tensor], p: Convolution, x: Tensor) -> Tensor:
    """x + output(silu(norm(taps * (values · sigmoid(gates)))))"""
    y = g.linear(x, p.gates, bias=p.gates_bias, norm=p.norm)
    width = y.shape[1] // 2
    y = g.mul_columns(g.resize_heads(y, 1, width), g.activate(y, "sigmoid"), width)
    y = g.centred_conv1d(y, p.taps, bias=p.bias) if p.state is None else g.conv1d(y, p.taps, p.state, bias=p.bias)
    y = g.activate(normed(g, y, p.between), "silu")
    return output(g, p.output, y, x)


@dataclass(frozen=True)
class NormedProjector(Projector):
    """Gemma 4: W norm(V x + bias)"""

    first: Weight | None
    bias: Weight | None
    norm: Rms
    matrix: Weight

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        x = x if self.first is None else g.linear(x, self.first, bias=self.bias)
        return g.linear(x, self.matrix, norm=self.norm)
