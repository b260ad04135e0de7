"""What every synthetic model says of itself, and the formats that llama.cpp gives to its tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..gguf.header import Value

Tensors = Iterator[tuple[str, tuple[int, ...], str]]  # name, shape, format


@dataclass(frozen=True)
class Quant:
    """The formats of a file by what a tensor is for."""

    matrices: str
    embedding: str
    head: str  # of a tied embedding, too, and of the finer half of v and down
    lora: str


QUANTS = {
    "q4_k_m": Quant("Q4_K", "Q4_K", "Q6_K", "F16"),
    "q8_0": Quant("Q8_0", "Q8_0", "Q8_0", "F16"),
    "f16": Quant("F16", "F16", "F16", "F16"),
}


class Shape(Protocol):
    """A model's sizes, and what follows from them."""

    @property
    def arch(self) -> str:
        """What a file calls the architecture."""

    def tensors(self, quant: Quant) -> Tensors:
        """All of them, in the order of a file."""

    def metadata(self) -> Mapping[str, Value]:
        """What loaders ask for, with a vocabulary of bytes."""


def whole(kind: str, width: int) -> str:
    """The format, or the one that llama.cpp falls back to where its blocks do not divide a row."""
    if width % 256 == 0 or kind not in FALLBACKS:
        return kind
    return FALLBACKS[kind] if width % 32 == 0 else "F16"


FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}


def byte_vocabulary(count: int) -> dict[str, Value]:
    """The metadata of a tokenizer that knows all bytes, and so many ids."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens + [f"<pad{n}>" for n in range(len(tokens), count)],
        "tokenizer.ggml.scores": [-float(n) for n in range(count)],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [5] * (count - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def rwkv_vocabulary(size: int) -> Mapping[str, Value]:
    """A vocabulary of bytes in RWKV's form."""
    padding = (f"[PAD{n}]" for n in range(257, size))
    return {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": ["<s>", *(f"\\x{n:02x}" for n in range(256)), *padding],
        "tokenizer.ggml.token_type": [3, *[1] * 256, *[5] * (size - 257)],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }


def norm(name: str, width: int) -> Tensors:
    """The vectors of a layer norm."""
    yield f"{name}.weight", (width,), "F32"
    yield f"{name}.bias", (width,), "F32"
