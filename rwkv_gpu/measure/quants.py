"""Formats that llama.cpp gives to tensors, metadata shared by all synthetic models, and tables of their tensors."""

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..gguf.header import Value

Tensors = Iterator[tuple[str, tuple[int, ...], str]]  # name, shape, format


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


class Shape(Protocol):
    """A model's sizes, with the tensors and metadata that follow from them."""

    @property
    def arch(self) -> str:
        """The name of the architecture in files."""

    def tensors(self, quant: Quant) -> Tensors:
        """All tensors, in file order."""

    def metadata(self) -> Mapping[str, Value]:
        """The metadata that loaders read, with a vocabulary of bytes."""


def whole(kind: str, width: int) -> str:
    """The format, or llama.cpp's fallback if its blocks do not divide a row."""
    if width % 256 == 0 or kind not in FALLBACKS:
        return kind
    return FALLBACKS[kind] if width % 32 == 0 else "F16"


FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}


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


def keyed(arch: str, sizes: Mapping[str, Value]) -> dict[str, Value]:
    """Metadata with keys prefixed by the architecture."""
    return {f"{arch}.{key}": value for key, value in sizes.items()}


def rows(sections: str, formats: Mapping[str, str], sizes: Mapping[str, int], at: str = "") -> Tensors:
    """The tensors of sections of tensors.txt. Each line there is a tensor: its name, dimensions and format.

    - `at` is put before each name. `.weight` is put after it, unless the name has a suffix or ends in a dot.
      `{a,b}` in a name means several tensors.
    - A dimension is a number, a size, or a sum of products of these. A tensor with a dimension of 0 is left out.
    - The format is a key of `formats`, or a format's name; the default is F32. A trailing + adds a bias.
    """
    every = (line for section in sections.split(", ") for line in _sections()[section])
    for names, dimensions, kind, biased in every:
        shape = tuple(sum(math.prod(_size(one, sizes) for one in term) for term in each) for each in dimensions)
        for name in names if 0 not in shape else ():
            yield f"{at}{name}", shape, whole(formats.get(kind, kind), shape[-1])
            if biased:
                yield f"{at}{name.removesuffix('weight')}bias", shape[:1], "F32"


def _size(text: str, sizes: Mapping[str, int]) -> int:
    return int(text) if text.isdigit() else sizes[text]


Line = tuple[list[str], list[list[list[str]]], str, bool]  # names, dimensions as sums of products, format, bias


@functools.cache
def _sections() -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in Path(__file__).with_name("tensors.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = found[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            lines.append(_parsed(line))
    return found


def _parsed(line: str) -> Line:
    name, dimensions, *rest = line.split()
    head, *several = re.split(r"[{}]", name)
    names = [head + one + several[1] for one in several[0].split(",")] if several else [head]
    whole_names = [one.removesuffix(".") if "." in one else f"{one}.weight" for one in names]
    sums = [[term.split("*") for term in each.split("+")] for each in dimensions.split(",")]
    kind = rest[0] if rest else "F32"
    return whole_names, sums, kind.removesuffix("+"), kind.endswith("+")
