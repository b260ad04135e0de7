"""GLM-5.3-Flash: KDA with bounded decays, some layers of latent attention to chosen blocks, several residual streams.

Latents have no positions. An indexer scores blocks of keys, each by a weighted mean. The last norm reads the mean of
the streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import ClampedSwiglu, KeyIndex, Ops, Tensor
from .bailingmoe3 import LARGEST_BOUND, MIN_BOUND
from .hybrid import AttendsToLatents, Block, Hybrid, HybridFile
from .hyper_connections import Streamed, take_mixes
from .kda import KDA, take_kda
from .latent import IndexSizes, LatentScores, LatentSizes, take_latent_attention

MAGNITUDE = 2.0  # of the gates that write to streams
LARGEST_POOL = 64  # positions of a block


@dataclass(frozen=True)
class Glm5Next(Streamed):
    """A model some of whose layers attend, and others have a delta net."""

    def attend(self, g: Ops[Tensor], i: int, h: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor | None]:
        first = self.blocks[i][0]
        return (first(g, h, None, self.eps), chosen) if isinstance(first, KDA) else super().attend(g, i, h, chosen)


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    layers, heads = range(source.sizes.layers), source.heads
    kv_heads, latent = source.kv_heads([heads] * len(layers)), source.latent_sizes(heads, rotates=False)
    scores, index = LatentScores(None, latent.nope**-0.5), _read_index(source, latent)
    bound = file.float(f"{source.arch}.kda.gate_lower_bound", MIN_BOUND, LARGEST_BOUND)
    experts = source.read_experts(scores="sigmoid")
    dense = source.integer("leading_dense_block_count", 0, len(layers), default=0)
    limits, shared = (source.clamps(f"swiglu_clamp_{name}", ClampedSwiglu(0.0)) for name in ("exp", "shexp"))

    def first(i: int) -> Block:
        if not kv_heads[i]:
            return take_kda(source, heads, i, bound=bound, negated=True)
        return AttendsToLatents(take_latent_attention(file, source.tensors, latent, scores, i, index=index))

    def second(i: int) -> Block:
        if i < dense:
            return source.feed(i, source.inner, then=shared[i])
        return source.experts(i, experts, shared=True, then=limits[i], shared_then=shared[i])

    blocks: Sequence[tuple[Block, ...]] = [(first(i), second(i)) for i in layers]
    iterations = source.integer("hyper_connection.sinkhorn_iterations", 1, 1000)
    mixes, _ = take_mixes(source, MAGNITUDE, write_eps=False, iterations=iterations, head=False)
    return source.model(blocks, kind=Glm5Next, mixes=mixes, last=None)


def _read_index(source: HybridFile, latent: LatentSizes) -> IndexSizes:
    """The sizes of indexers, which choose whole blocks."""
    block = source.integer("attention.indexer.kpool", 1, LARGEST_POOL)
    most = -(-source.sizes.context // block)
    count = min(most, source.integer("attention.indexer.top_k", block, 1 << 20) // block)
    eps = source.file.float(f"{source.arch}.attention.layer_norm_epsilon", 0.0, 1e-2, default=latent.eps)
    how = KeyIndex(source.integer("attention.indexer.head_count"), None, count, block=block)
    return IndexSizes(source.integer("attention.indexer.key_length"), how, eps, pooled=True)
