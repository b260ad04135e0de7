"""Ling 3 and Ring 3: layers of KDA with bounded decays, and some of latent attention with a gate for each head.

Only latent attention has RoPE. Files converted from multimodal models have position sections. In such files, heads
are permuted to NeoX order.
"""

from collections.abc import Sequence
from dataclasses import replace

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Pairing
from .hybrid import AttendsToLatents, Block, Hybrid, HybridFile
from .kda import take_kda
from .latent import LatentScores, take_latent_attention

ARCH = "bailingmoe3"
MIN_BOUND, LARGEST_BOUND = -80.0, -1e-3  # bounds of the logarithm of a decay, within float32; models have -5
CLAMPS = "swiglu_clamp_exp", "swiglu_clamp_shexp"


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    _refuse_others(file)
    layers, heads = range(source.sizes.layers), source.heads
    kv_heads = source.kv_heads([heads] * len(layers))
    bound = file.float(f"{ARCH}.kda.gate_lower_bound", MIN_BOUND, LARGEST_BOUND)
    latent = replace(source.latent_sizes(heads), gated=True)
    pairing: Pairing = "neox" if f"{ARCH}.rope.dimension_sections" in file.metadata else "normal"
    scores = LatentScores(source.rope(pairing, latent.rotary), (latent.nope + latent.rotary) ** -0.5)
    experts = source.read_experts(scores="sigmoid")

    def first(i: int) -> Block:
        if kv_heads[i]:
            return AttendsToLatents(take_latent_attention(file, source.tensors, latent, scores, i))
        return take_kda(source, heads, i, bound=bound)

    def of_head(head: HybridFile, i: int) -> Sequence[Block]:
        return AttendsToLatents(take_latent_attention(file, head.tensors, latent, scores, i)), head.second(i, experts)

    return source.model([(first(i), source.second(i, experts)) for i in layers], head_layer=of_head)


def _refuse_others(file: GGUFFile) -> None:
    """Refuses values of keys that no published file of these models has."""
    if not file.bool(f"{ARCH}.kda.safe_gate", default=True):
        raise UnsupportedModel(f"{file.path}: decays of this architecture without a bound are not supported")
    for name in CLAMPS:
        key = f"{ARCH}.{name}"
        if key in file.metadata and any(limit > 0 for limit in file.floats(key)):
            raise UnsupportedModel(f"{file.path}: {key}: a clamped SwiGLU is not supported in this architecture")
