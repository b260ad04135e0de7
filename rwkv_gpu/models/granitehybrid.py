"""Granite 4 H: most layers are Mamba-2, some attend without positions; a feed-forward or experts follow each.

Four numbers of the file scale the embedding, every branch, the attention scores and the logits.
"""

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention
from .dense import SCALE
from .hybrid import Block, Hybrid, HybridFile
from .mamba2 import read_inner, take_mixer


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    tensors, layers = source.tensors, range(source.sizes.layers)
    inner, heads = read_inner(source), source.heads
    kv_heads, size = source.kv_heads([heads] * len(layers)), source.head_size(heads)
    turns = file.bool(f"{source.arch}.rope.scaling.finetuned", default=True)
    rope, scores = source.rope("normal", size) if turns else None, _scale(source, "attention.scale", size**-0.5)
    how, branch = Attention(heads, rope, scale=scores), _scale(source, "residual_scale")
    experts = source.read_experts(normalise=True) if source.has_experts else None

    def mixer(i: int) -> Block:
        norm = source.norm(i)
        if kv_heads[i]:
            return source.attention(i, norm, kv_heads[i], how, size, scale=branch)
        return take_mixer(source, inner, i, norm, scale=branch)

    def second(i: int) -> Block:
        if experts is None:
            return source.feed(i, source.inner, scale=branch)
        return source.experts(i, experts, shared=f"blk.{i}.ffn_up_shexp.weight" in tensors, scale=branch)

    return source.model(
        [(mixer(i), second(i)) for i in layers],
        embedding_scale=_scale(source, "embedding_scale"),
        logit_scale=1 / _scale(source, "logit_scale"),
    )


def _scale(source: HybridFile, key: str, default: float = 1.0) -> float:
    return source.file.float(f"{source.arch}.{key}", *SCALE, default=default)
