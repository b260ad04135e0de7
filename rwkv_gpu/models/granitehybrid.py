"""Granite 4 H: most layers are Mamba-2, some attend without positions; a feed-forward or experts follow each.

Four numbers of the file scale the embedding, every branch, the attention scores and the logits.
"""

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention
from .experts import read_experts, take_mixture
from .hybrid import (
    Block,
    Experts,
    Hybrid,
    head_size,
    read_kv_heads,
    read_sizes,
    take_attention,
    take_feed,
    take_model,
    take_norm,
)
from .mamba2 import read_inner, take_mixer
from .rope import read_rope
from .tensors import Tensors

ARCH = "granitehybrid"
SCALES = 1e-6, 1e6


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes, inner = read_sizes(file, ARCH, tensors), read_inner(file, ARCH, tensors)
    heads = file.int(f"{ARCH}.attention.head_count", low=1, high=1 << 12)
    kv_heads = read_kv_heads(file, sizes, [heads] * sizes.layers)
    size = head_size(file, ARCH, sizes.width, heads)
    turns = file.bool(f"{ARCH}.rope.scaling.finetuned", default=True)
    how = Attention(
        heads,
        read_rope(file, ARCH, tensors, "normal", size, sizes.context) if turns else None,
        scale=file.float(f"{ARCH}.attention.scale", *SCALES, default=size**-0.5),
    )
    branch = file.float(f"{ARCH}.residual_scale", *SCALES, default=1.0)
    experts = read_experts(file, ARCH, sizes.width, normalise=True) if _has_experts(file) else None
    feed = file.int(f"{ARCH}.feed_forward_length", low=1, high=1 << 20)

    def mixer(i: int) -> Block:
        norm = take_norm(tensors, sizes, i)
        if kv_heads[i]:
            return take_attention(tensors, sizes, i, norm, kv_heads[i], how, size, scale=branch)
        return take_mixer(tensors, sizes, inner, i, norm, scale=branch)

    def second(i: int) -> Block:
        norm = f"blk.{i}.ffn_norm.weight"
        if experts is None:
            return take_feed(tensors, sizes, i, feed, norm, scale=branch)
        shared = f"blk.{i}.ffn_up_shexp.weight" in tensors
        return Experts(tensors.take(norm, sizes.width), take_mixture(tensors, experts, i, shared=shared), branch)

    return take_model(
        tensors,
        sizes,
        [(mixer(i), second(i)) for i in range(sizes.layers)],
        embedding_scale=file.float(f"{ARCH}.embedding_scale", *SCALES, default=1.0),
        logit_scale=1 / file.float(f"{ARCH}.logit_scale", *SCALES, default=1.0),
    )


def _has_experts(file: GGUFFile) -> bool:
    return file.int(f"{ARCH}.expert_count", low=0, default=0) > 0
