"""Kimi K3: KDA with bounded decays, latent attention with gates, and experts that read rows of a smaller width.

Every few layers, a new residual stream begins. A branch reads a mean of all streams, and adds to the last one.
"""

from dataclasses import dataclass, replace
from functools import reduce

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Ops, Rms, Situ, Tensor, Weight
from .bailingmoe3 import LARGEST_BOUND, MIN_BOUND
from .hybrid import AttendsToLatents, Hybrid, HybridFile
from .kda import KDA, take_kda
from .latent import LatentScores, take_latent_attention

ARCH = "kimi-k3"
LIMIT = 1e-3, 1e6  # range of the limits of gates


@dataclass(frozen=True)
class KimiK3(Hybrid):
    """A model whose layers i · period begin a new residual stream."""

    # [1, D] each, of streams before attention and before feed-forwards; the first attention reads a single stream
    scores: tuple[tuple[Weight | None, Weight], ...]
    last_score: Weight
    period: int

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - layers see x alone
        past: tuple[Tensor, ...] = ()
        for i, ((first, second), (of_first, of_second)) in enumerate(zip(self.blocks, self.scores, strict=True)):
            assert isinstance(first, AttendsToLatents | KDA), "they may add to nothing"
            with g.layer(i):
                seen, begins = self._mean(g, (*past, x), of_first), i % self.period == 0
                past = (*past, x) if begins else past
                x = first(g, seen, None if begins else x, self.eps)
                x = second(g, self._mean(g, (*past, x), of_second), x, self.eps)
        return self._mean(g, (*past, x), self.last_score)

    def _mean(self, g: Ops[Tensor], streams: tuple[Tensor, ...], score: Weight | None) -> Tensor:
        """sum_i p_i · x_i of these streams, p = softmax_i(w · norm(x_i))"""
        if score is None:
            return streams[0]
        scores = g.linears(streams, [score] * len(streams), norm=Rms(None, self.eps))
        return g.row_matrix(g.softmax(reduce(g.concat, scores)), reduce(g.concat, streams))


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    tensors, layers, heads, width = source.tensors, range(source.sizes.layers), source.heads, source.sizes.width
    kv_heads, latent = source.kv_heads([heads] * len(layers)), source.latent_sizes(heads)
    scores = LatentScores(None, (latent.nope + latent.rotary) ** -0.5)
    bound = file.float(f"{ARCH}.kda.gate_lower_bound", MIN_BOUND, LARGEST_BOUND)
    then = Situ(*(file.float(f"{ARCH}.activation.situ_{name}", *LIMIT) for name in ("beta", "linear_beta")))
    experts = replace(source.read_experts(scores="sigmoid"), eps=source.sizes.eps)

    def first(i: int) -> AttendsToLatents | KDA:
        if not kv_heads[i]:
            return take_kda(source, heads, i, bound=bound, negated=True)
        own = replace(latent, gated=f"blk.{i}.attn_gate.weight" in tensors)
        return AttendsToLatents(take_latent_attention(file, tensors, own, scores, i))

    def score(name: str) -> Weight:
        return tensors.take(f"{name}_res_score.weight", 1, width)

    tensors.skip("blk.0.attn_res_score.weight")
    return source.model(
        [(first(i), source.second(i, experts, then)) for i in layers],
        kind=KimiK3,
        scores=tuple((score(f"blk.{i}.attn") if i else None, score(f"blk.{i}.ffn")) for i in layers),
        last_score=score("output"),
        period=source.integer("attn_res.block_size", 1, 1024),
    )
