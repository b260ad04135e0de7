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

    matrix: Weight  # [S, S · D], [2 · S, S · D], or [(2 + S) · S, S · D] with a matrix between streams
    gates: StreamGates


@dataclass(frozen=True)
class Streamed(Hybrid):
    """A model with several residual streams. It may have indexers, which choose the keys that rows see."""

    mixes: tuple[tuple[StreamMix, StreamMix], ...]  # of attention and of the feed-forward, by layer
    last: StreamMix | None  # of the head, which otherwise reads the mean

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        streams = self.mixes[0][0].gates.streams
        chosen, x = None, reduce(g.concat, [x] * streams)
        for i, (first, second) in enumerate(self.mixes):
            with g.layer(i):
                h, gates = self._read(g, first, x)
                found, chosen = self.attend(g, i, h, chosen)
                x = self._add(g, x, found, gates)
                h, gates = self._read(g, second, x)
                x = self._add(g, x, self.feed(g, i, h, ids), gates)
        return self._read(g, self.last, x)[0] if self.last else g.mean_parts(x, streams)

    def attend(self, g: Ops[Tensor], i: int, h: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The result of attention in layer i, and the keys that were chosen"""
        attention = self.blocks[i][0]
        assert isinstance(attention, AttendsToLatents), "all layers attend to latents"
        return chosen_self_attention(g, attention.p, h, None, chosen)

    def feed(self, g: Ops[Tensor], i: int, h: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - it sees h alone
        """The result of the feed-forward of layer i"""
        block = self.blocks[i][1]
        assert isinstance(block, GatedFeed | Experts), "it may add to nothing"
        return block(g, h, None, self.eps)

    def _read(self, g: Ops[Tensor], p: StreamMix, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """sum_s r_s x_s, and what adds to streams; all are computed from W norm(x)"""
        read, *write = g.stream_gates(g.linear(x, p.matrix, norm=Rms(None, self.eps)), p.gates)
        return g.row_matrix(read, x), write

    def _add(self, g: Ops[Tensor], x: Tensor, found: Tensor, gates: list[Tensor]) -> Tensor:
        gate, *matrix = gates
        return g.add_to_streams(x, found, gate, matrix=matrix[0] if matrix else None)


def take_mixes(
    source: HybridFile, magnitude: float, *, write_eps: bool = True, iterations: int = 0, head: bool = True
) -> tuple[tuple[tuple[StreamMix, StreamMix], ...], StreamMix | None]:
    """Takes the weights of all branches, by layer, and those of the head; with iterations, matrices between streams."""
    tensors, width = source.tensors, source.sizes.width
    streams = source.integer("hyper_connection.count", *STREAMS)
    eps = source.file.float(f"{source.arch}.hyper_connection.epsilon", 0.0, 1.0)

    def take(at: str, kinds: int, rows: int, turns: int = 0) -> StreamMix:
        scales, bias = tensors.take(f"{at}_scale.weight", kinds), tensors.take(f"{at}_base.weight", rows)
        gates = StreamGates(streams, scales, bias, eps, magnitude, eps if write_eps else 0.0, turns)
        return StreamMix(tensors.take(f"{at}_fn.weight", rows, streams * width), gates)

    def branch(at: str) -> StreamMix:
        return take(at, 3, (2 + streams) * streams, iterations) if iterations else take(at, 2, 2 * streams)

    layers = range(source.sizes.layers)
    mixes = tuple((branch(f"blk.{i}.hc_attn"), branch(f"blk.{i}.hc_ffn")) for i in layers)
    return mixes, take("output_hc", 1, streams) if head else None
