"""Hyper-connections: several residual streams. A branch reads a weighted sum of all, and adds to each with a weight."""

from dataclasses import dataclass
from functools import reduce

from ..ops.vocabulary import Ops, Rms, StreamGates, Tensor, Weight
from .hybrid import AttendsToLatents, Experts, GatedFeed, Hybrid, HybridFile
from .latent import chosen_self_attention

STREAMS = 2, 16  # least and most


@dataclass(frozen=True)
class StreamMix:
    """Parameters of the weights with which a branch reads streams, and adds to them. The head only reads."""

    matrix: Weight  # [S, S · D], or [2 · S, S · D]
    gates: StreamGates


@dataclass(frozen=True)
class Streamed(Hybrid):
    """A model with several residual streams. It may have indexers, which choose the keys that rows see."""

    mixes: tuple[tuple[StreamMix, StreamMix], ...]  # of attention and of the feed-forward, by layer
    last: StreamMix  # of the head

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - layers see x alone
        chosen, x = None, reduce(g.concat, [x] * self.last.gates.streams)
        for i, ((attention, second), (first, then)) in enumerate(zip(self.blocks, self.mixes, strict=True)):
            assert isinstance(attention, AttendsToLatents), "all layers attend to latents"
            assert isinstance(second, GatedFeed | Experts), "it may add to nothing"
            with g.layer(i):
                h, [gates] = self._read(g, first, x)
                found, chosen = chosen_self_attention(g, attention.p, h, None, chosen)
                x = g.add_to_streams(x, found, gates)
                h, [gates] = self._read(g, then, x)
                x = g.add_to_streams(x, second(g, h, None, self.eps), gates)
        return self._read(g, self.last, x)[0]

    def _read(self, g: Ops[Tensor], p: StreamMix, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """sum_s r_s x_s, and the weights with which a branch adds to streams; all weights are gates of W norm(x)"""
        read, *write = g.stream_gates(g.linear(x, p.matrix, norm=Rms(None, self.eps)), p.gates)
        return g.row_matrix(read, x), write


def take_mixes(source: HybridFile) -> tuple[tuple[tuple[StreamMix, StreamMix], ...], StreamMix]:
    """Takes the weights of all branches, by layer, and those of the head."""
    key, tensors, width = f"{source.arch}.hyper_connection", source.tensors, source.sizes.width
    streams = source.integer("hyper_connection.count", *STREAMS)
    eps = source.file.float(f"{key}.epsilon", 0.0, 1.0)
    magnitude = source.file.float(f"{key}.magnitude", 1e-3, 1e3)

    def take(at: str, kinds: int) -> StreamMix:
        scales, bias = tensors.take(f"{at}_scale.weight", kinds), tensors.take(f"{at}_base.weight", kinds * streams)
        matrix = tensors.take(f"{at}_fn.weight", kinds * streams, streams * width)
        return StreamMix(matrix, StreamGates(streams, scales, bias, eps, magnitude))

    layers = range(source.sizes.layers)
    mixes = tuple((take(f"blk.{i}.hc_attn", 2), take(f"blk.{i}.hc_ffn", 2)) for i in layers)
    return mixes, take("output_hc", 1)
