"""Formats that llama.cpp gives to tensors, and the metadata of tokenizers that all synthetic models share."""

import re
from dataclasses import dataclass

from ..gguf.header import Value


@dataclass(frozen=True)
class Quant:
    """The formats of a file, by purpose of a tensor."""

    matrices: str
    embedding: str
    head: str  # format of the head, of a tied embedding, and of the more precise half of v and down
    lora: str


QUANTS = {
    "q4_k_m": Quant("Q4_K", "Q4_K", "Q6_K", "F16"),
    "q8_0": Quant("Q8_0", "Q8_0", "Q8_0", "F16"),
    "f16": Quant("F16", "F16", "F16", "F16"),
}
FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
# Matrices, by name without `blk.N.` and `.weight`, that stay float32, and those of RWKV-7's LoRAs.
EXACT = re.compile(
    r".*norm.*|.*\.bias|position_embd|token_types|ffn_gate_inp(_shexp)?|ssm_(a|d|conv1d)|shortconv\.conv|"
    r"(time|channel)_mix_lerp_.|time_mix_(lerp_fused|first|w[12]|decay_w[12])"
)
LORA = re.compile(r"time_mix_[avg][12]")


def whole(kind: str, width: int) -> str:
    """The format, or llama.cpp's fallback if its blocks do not divide a row."""
    if width % 256 == 0 or kind not in FALLBACKS:
        return kind
    return FALLBACKS[kind] if width % 32 == 0 else "F16"


def byte_vocabulary(count: int) -> dict[str, Value]:
    """The metadata of a tokenizer with `count` ids, which include all bytes."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens + [f"<pad{n}>" for n in range(len(tokens), count)],
        "tokenizer.ggml.scores": [-float(n) for n in range(count)],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [5] * (count - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def rwkv_vocabulary(size: int) -> dict[str, Value]:
    """A vocabulary of bytes in RWKV's form."""
    padding = (f"[PAD{n}]" for n in range(257, size))
    return {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": ["<s>", *(f"\\x{n:02x}" for n in range(256)), *padding],
        "tokenizer.ggml.token_type": [3, *[1] * 256, *[5] * (size - 257)],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
