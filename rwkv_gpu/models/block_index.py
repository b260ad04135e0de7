"""Indexers that choose the blocks of keys that a row sees: one list for each KV head, or one for all."""

from dataclasses import dataclass

import numpy as np

from ..ops.vocabulary import Cache, KeyIndex, Ops, Rms, State, Tensor, Weight
from .tensors import Tensors

STEP, LARGEST = 8, 512  # sizes of an indexer's keys


@dataclass(frozen=True)
class BlockIndex:
    """Parameters and cache of an indexer."""

    q: Weight  # [H · N, D]
    k: Weight  # [N, D]
    q_norm: Rms  # by head, [N]
    k_norm: Rms
    cache: Cache
    how: KeyIndex
    mean: Weight | None = None  # [N · B] of 1 / B, if blocks have the mean of their keys
    past: State | None = None  # [B - 1, N], the last keys of a sequence

    @property
    def states(self) -> tuple[State, ...]:
        """The keys of a block that is not complete."""
        return (self.past,) if self.past else ()


def chosen_blocks(g: Ops[Tensor], p: BlockIndex, q: Tensor, k: Tensor) -> Tensor:
    """The positions that each row sees, by the scores of norm(q) and norm(k), or norm(mean(k)) of the last B keys"""
    if p.mean and p.past:
        k = g.conv1d(k, p.mean, p.past)
    q = g.group_rms_norm(q, p.q_norm.weight, p.how.heads, p.q_norm.eps)
    return g.choose_keys(q, g.rms_norm(k, p.k_norm.weight, p.k_norm.eps), None, p.cache, p.how)


def take_block_index(
    tensors: Tensors, i: int, how: KeyIndex, size: int, width: int, eps: float, *, pooled: bool = False
) -> BlockIndex:
    """Takes the indexer of block i, whose keys have this size. `pooled`: a block has the mean of its keys."""
    at = f"blk.{i}.indexer"
    tensors.check_heads(size, STEP, LARGEST)
    if how.rope and how.rope.dims > size:
        raise tensors.bad("the size of an indexer's keys", str(size), f"{how.rope.dims}, which rotate, or more")
    return BlockIndex(
        q=tensors.take(f"{at}.q_proj.weight", how.heads * size, width),
        k=tensors.take(f"{at}.k_proj.weight", size, width),
        q_norm=Rms(tensors.take(f"{at}.q_norm.weight", size), eps),
        k_norm=Rms(tensors.take(f"{at}.k_norm.weight", size), eps),
        cache=Cache(f"blk.{i}.index", 1, size, size),
        how=how,
        mean=_mean(tensors, f"{at}.mean", size, how.block) if pooled else None,
        past=State(f"{at}.past", (how.block - 1, size)) if pooled else None,
    )


def _mean(tensors: Tensors, name: str, size: int, block: int) -> Weight:
    """The taps of a convolution that averages the last keys."""
    tensor = name.replace(".mean", ".k_norm.weight"), (size,)  # `compute` needs one, though this ignores its values
    return tensors.compute(name, (size * block,), lambda _: np.full(size * block, 1 / block, np.float32), tensor)
