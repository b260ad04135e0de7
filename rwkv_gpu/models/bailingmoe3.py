"""Ling 3 and Ring 3: layers of KDA whose decays are bounded, some of latent attention with a gate for each head.

Positions rotate in latent attention. Files made from models of images and text have sections of positions; their
heads are permuted to halves.
"""

from dataclasses import replace

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Pairing
from .experts import read_experts
from .hybrid import (
    AttendsToLatents,
    Block,
    Hybrid,
    read_kv_heads,
    read_latent_sizes,
    read_sizes,
    take_model,
    take_second,
)
from .kda import take_kda
from .latent import LatentScores, take_latent_attention
from .rope import read_rope
from .tensors import Tensors

ARCH = "bailingmoe3"
LEAST_BOUND, LARGEST_BOUND = -80.0, -1e-3  # of the logarithm of a decay, which float32 holds; -5 in models
CLAMPS = "swiglu_clamp_exp", "swiglu_clamp_shexp"


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes = read_sizes(file, ARCH, tensors)
    _refuse_others(file)
    heads = file.int(f"{ARCH}.attention.head_count", low=1, high=1 << 12)
    kv_heads = read_kv_heads(file, sizes, [heads] * sizes.layers)
    bound = file.float(f"{ARCH}.kda.gate_lower_bound", LEAST_BOUND, LARGEST_BOUND)
    latent = replace(read_latent_sizes(file, tensors, sizes, heads), gated=True)
    pairing: Pairing = "neox" if f"{ARCH}.rope.dimension_sections" in file.metadata else "normal"
    rope = read_rope(file, ARCH, tensors, pairing, latent.rotary, sizes.context)
    scores = LatentScores(rope, (latent.nope + latent.rotary) ** -0.5)
    experts = read_experts(file, ARCH, sizes.width, scores="sigmoid")

    def first(i: int) -> Block:
        if kv_heads[i]:
            return AttendsToLatents(take_latent_attention(file, tensors, latent, scores, i))
        return take_kda(file, tensors, sizes, heads, i, bound=bound)

    return take_model(
        tensors, sizes, [(first(i), take_second(file, tensors, sizes, experts, i)) for i in range(sizes.layers)]
    )


def _refuse_others(file: GGUFFile) -> None:
    """Refuses what the keys may say and no file of these models has been seen to."""
    if not file.bool(f"{ARCH}.kda.safe_gate", default=True):
        raise UnsupportedModel(f"{file.path}: decays of this architecture without a bound are not supported")
    for name in CLAMPS:
        key = f"{ARCH}.{name}"
        if key in file.metadata and any(limit > 0 for limit in file.floats(key)):
            raise UnsupportedModel(f"{file.path}: {key}: a clamped SwiGLU is not supported in this architecture")
