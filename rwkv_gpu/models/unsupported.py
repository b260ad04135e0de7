"""Architectures that llama.cpp knows and we do not: what each needs that is not there yet."""

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.cursor import shown
from ..gguf.file import GGUFFile

GELU = "a GELU-gated feed-forward"
MAMBA1 = "Mamba's selective scan"
BOTH_WINDOWS = "layers with and without a window"

MISSING: dict[str, tuple[str, ...]] = {
    "cohere2": ("attention and feed-forward in parallel", "layer norms without bias", BOTH_WINDOWS),
    "gemma3n": (GELU, "embeddings by layer", "layers that share keys and values"),
    "gpt2": ("learned positions", "layer norms in attention blocks"),
    "jamba": (MAMBA1,),
    "phi2": ("layer norms in attention blocks", "attention and feed-forward in parallel"),
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
