"""Architectures that llama.cpp knows and we do not: what each needs that is not there yet."""

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.cursor import shown
from ..gguf.file import GGUFFile

AFTER = "norms after each branch"
GELU = "a GELU-gated feed-forward"
FUSED = "q, k and v, and gate and up, in one tensor"
SHARED = "a shared expert"
SIGMOID = "a sigmoid router with a selection bias"
MAMBA1 = "Mamba's selective scan"
LATENT = "latent attention (MLA)"
SCALES = "scales of embeddings, branches and logits"
BOTH_WINDOWS = "layers with and without a window"

MISSING: dict[str, tuple[str, ...]] = {
    "bailingmoe2": (SIGMOID, SHARED, FUSED),
    "cohere2": ("attention and feed-forward in parallel", "layer norms without bias", BOTH_WINDOWS),
    "ernie4_5-moe": (SHARED, "dense layers before those with experts"),
    "exaone4": (AFTER, BOTH_WINDOWS),
    "gemma": (GELU, "a scale of the embedding"),
    "gemma3n": (GELU, "embeddings by layer", "layers that share keys and values"),
    "gemma4": (AFTER, GELU, "heads of two sizes", "layers that share keys and values", "embeddings by layer"),
    "glm4moe": (SIGMOID, SHARED, "dense layers before those with experts"),
    "gpt-oss": ("attention sinks", "biases of experts", "a clamped SwiGLU", BOTH_WINDOWS),
    "gpt2": ("learned positions", "layer norms in attention blocks"),
    "granitemoe": (SCALES,),
    "hunyuan-dense": ("head norms after the rotation",),
    "jamba": (MAMBA1,),
    "llama4": ("chunked attention", "layers without rotary positions", SHARED),
    "minimax-m2": (SIGMOID, "head norms over the whole width"),
    "phi2": ("layer norms in attention blocks", "attention and feed-forward in parallel"),
    "qwen2moe": (SHARED,),
    "seed_oss": ("its names of norms",),
    "starcoder2": ("layer norms in attention blocks", "a feed-forward of GELU"),
} | dict.fromkeys(
    ("bert", "clip", "jina-bert-v2", "modern-bert", "nomic-bert", "t5", "t5encoder"),
    ("an encoder, and this program generates text",),
)  # fmt: skip


def refusal(file: GGUFFile, name: str, known: list[str]) -> UnsupportedModel:
    """The error for a file of an architecture that is not one of the known."""
    parts = MISSING.get(name)
    why = f"it needs {', '.join(parts)}" if parts else "it is not known here"
    return UnsupportedModel(
        f"{file.path}: architecture {shown(name)} is not supported: {why}; supported are {', '.join(known)}"
    )
