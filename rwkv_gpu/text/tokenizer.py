"""Text to token ids and back: the interface of all tokenizers, and the function that makes one from metadata."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.cursor import shown
from rwkv_gpu.text.bpe import BpeTokenizer, HybridDnaTokenizer
from rwkv_gpu.text.raw_bpe import RAW, RawBpeTokenizer, WhitespaceTokenizer
from rwkv_gpu.text.rwkv import RwkvTokenizer
from rwkv_gpu.text.spm import SpmTokenizer
from rwkv_gpu.text.stream import Detokenizer
from rwkv_gpu.text.t5 import T5Tokenizer
from rwkv_gpu.text.unigram import UnigramTokenizer
from rwkv_gpu.text.vocabulary import read_name
from rwkv_gpu.text.wordpiece import WordPieceTokenizer


class Tokenizer(Protocol):
    """A vocabulary in use. Ids out of range raise BadInput; any text and any bytes can be encoded."""

    vocab_size: int
    bos: int | None
    eos: int | None
    eot: int | None  # ends a turn; for RWKV it is the text "\n\n", which does not end generation by itself
    add_bos: bool
    add_eos: bool
    stop_ids: frozenset[int]  # any of these ends generation
    suppressed: frozenset[int]  # none of these is sampled

    def encode(
        self, text: str | bytes, *, special: bool = False, parse: bool = False, after: int | None = None
    ) -> list[int]:
        """The ids of `text`; `special` adds BOS and EOS as the file says, `parse` matches special tokens in it.

        `after` is the id that stands before it: after a text's, no space is put in front.
        """
        ...

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of `ids`, U+FFFD for what is no UTF-8; `special` shows control tokens."""
        ...

    def decode_bytes(self, ids: Iterable[int], *, special: bool = False) -> bytes:
        """The bytes of the text of `ids`, as `decode` has it."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token as they are; decoding a whole may strip or clean spaces."""
        ...

    def stream(self, *, special: bool = False, continues: bool = False) -> Detokenizer:
        """A decoder for ids that come one by one. `continues`: they follow a prompt, so a first space stays."""
        ...


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
