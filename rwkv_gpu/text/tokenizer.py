"""Creates the tokenizer that a GGUF file describes."""

from collections.abc import Callable, Mapping
from typing import Any

from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.cursor import shown
from rwkv_gpu.text.base import Tokenizer
from rwkv_gpu.text.bpe import BpeTokenizer, HybridDnaTokenizer
from rwkv_gpu.text.raw_bpe import RAW, RawBpeTokenizer, WhitespaceTokenizer
from rwkv_gpu.text.rwkv import RwkvTokenizer
from rwkv_gpu.text.spm import SpmTokenizer
from rwkv_gpu.text.t5 import T5Tokenizer
from rwkv_gpu.text.unigram import UnigramTokenizer
from rwkv_gpu.text.vocabulary import read_name
from rwkv_gpu.text.wordpiece import WordPieceTokenizer

KINDS: dict[str, Callable[[Mapping[str, Any]], Tokenizer]] = {
    "rwkv": RwkvTokenizer,
    "gpt2": BpeTokenizer,
    "llama": SpmTokenizer,
    "hybriddna": HybridDnaTokenizer,
    "gemma4": RawBpeTokenizer,
    "whitespace": WhitespaceTokenizer,
    "plamo2": UnigramTokenizer,
    "bert": WordPieceTokenizer,
    "t5": T5Tokenizer,
}


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file's `metadata` describes."""
    kind = read_name(metadata, "model")
    if kind is None:
        raise BadFile("tokenizer.ggml.model is missing: the file has no tokenizer")
    if kind not in KINDS:
        raise UnsupportedModel(f"tokenizer.ggml.model {shown(kind)} is not supported; known: {', '.join(KINDS)}")
    if kind == "gpt2" and read_name(metadata, "pre") in RAW:
        return RawBpeTokenizer(metadata)
    return KINDS[kind](metadata)
