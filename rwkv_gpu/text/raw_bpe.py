"""BPE over UTF-8 characters instead of bytes: Gemma 4, Sarvam, and vocabularies that drop white space."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tokenizers
from tokenizers import models

from rwkv_gpu.errors import BadFile
from rwkv_gpu.text.base import Tokenizer
from rwkv_gpu.text.bpe import LONG
from rwkv_gpu.text.interruption import steps
from rwkv_gpu.text.utf8 import SURROGATES, decode_leniently
from rwkv_gpu.text.vocabulary import PREFIX, SPACE, Defaults, read_flag, read_merges, read_name, read_vocabulary

_LINES = re.compile(r"\n+|[^\n]+")  # no merge crosses the end of a line


@dataclass(frozen=True)
class RawBpe:
    """How a vocabulary splits text before merges, and related options."""

    words: re.Pattern[str] = _LINES
    marks_spaces: bool = True  # a space becomes the letter ▁
    whole_line_ends: bool = False  # a run of line ends that is a token needs no merges
    clean_spaces: bool = False
    always_bos: bool = False  # some files disable it, but the models were trained with it


_GEMMA = RawBpe(whole_line_ends=True, clean_spaces=True, always_bos=True)
# By `tokenizer.ggml.pre`. mmBERT, and the Granite encoder based on it, have Gemma's vocabulary.
RAW = {
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m", "mmbert"), _GEMMA),
    "sarvam-moe": RawBpe(),
    "whitespace": RawBpe(re.compile(r"\S+|\s+"), marks_spaces=False, clean_spaces=True),
}


class RawBpeTokenizer(Tokenizer):
    """Merges by rank within a line or word.

    Characters without a token become byte tokens if the vocabulary has them.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        gemma = read_name(metadata, "model") == "gemma4"
        self.row = _GEMMA if gemma else RAW[read_name(metadata, "pre") or ""]
        vocabulary = read_vocabulary(metadata, Defaults(add_bos=self.row.always_bos))
        super().__init__(vocabulary)
        self.clean_spaces = self.row.clean_spaces
        if self.row.always_bos:
            self.add_bos = vocabulary.bos is not None
        has_bytes = self.row.marks_spaces or "<0x00>" in vocabulary.ids
        self.byte_ids = read_bytes(vocabulary.ids) if has_bytes else None
        letters = "" if has_bytes else "".join(text for text in vocabulary.tokens if len(text) == 1)
        self._known = re.compile(f"[{re.escape(letters)}]+") if letters else None  # merges across a space are dropped
        merges = read_merges(metadata, vocabulary.ids)
        self._merger = models.BPE(vocab=dict(vocabulary.ids), merges=merges, byte_fallback=has_bytes)
        self._words = tokenizers.Tokenizer(self._merger)

    def _encode_plain(self, text: bytes, *, opening: bool) -> Iterable[int]:  # noqa: ARG002
        decoded = decode_leniently(text)
        ids: list[int] = []
        for i, run in enumerate(SURROGATES.split(decoded.replace(" ", SPACE) if self.row.marks_spaces else decoded)):
            if i % 2:  # surrogates, which `tokenizers` rejects
                ids += [self.byte_ids[byte] for byte in run.encode("utf-8", "surrogatepass")] if self.byte_ids else []
            else:
                for word in steps(self.row.words.findall(run)):
                    ids += self._encode_word(word)
        return ids

    def _encode_word(self, word: str) -> list[int]:
        if self.row.whole_line_ends and word[0] == "\n" and word in self.vocabulary.ids:
            return [self.vocabulary.ids[word]]
        runs = self._known.findall(word) if self._known else [word]
        return [token for run in runs for token in self._merge(run)]

    def _merge(self, run: str) -> list[int]:
        if len(run) <= LONG:
            return [token.id for token in self._merger.tokenize(run)]
        [encoded] = self._words.encode_batch_fast([run], add_special_tokens=False)  # releases the interpreter lock
        return encoded.ids


class WhitespaceTokenizer(RawBpeTokenizer):
    """BPE over words separated by white space, which is dropped: Jina's Chinese encoder."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__({**metadata, PREFIX + "pre": "whitespace"})
        self.row = replace(self.row, words=re.compile(r"\S+"))
        self._lowercase = read_flag(metadata, "normalizer.lowercase", False)

    def _encode_word(self, word: str) -> list[int]:
        return super()._encode_word(word.lower() if self._lowercase else word)


def read_bytes(ids: Mapping[str, int]) -> list[int]:
    """The token of each byte."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    missing = [name for name in names if name not in ids]
    if missing:
        raise BadFile(f"{PREFIX}tokens: no token {missing[0]}, which stands for a byte")
    return [ids[name] for name in names]
