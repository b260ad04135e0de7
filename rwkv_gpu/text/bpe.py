"""Byte-level BPE, as in GPT-2: a pattern splits words, and their bytes are merged pair by pair. Uses `tokenizers`."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers

from rwkv_gpu.errors import UnsupportedModel
from rwkv_gpu.gguf.cursor import shown
from rwkv_gpu.text.base import Tokenizer
from rwkv_gpu.text.pretokenizers import DEFAULT, PRE, PreTokenizer
from rwkv_gpu.text.utf8 import SURROGATES, decode_leniently
from rwkv_gpu.text.vocabulary import PREFIX, Defaults, Kind, read_merges, read_name, read_vocabulary


class PreTokenizerWarning(UserWarning):
    """The file does not specify how words are split; the result may differ from training."""


LONG = 10_000  # texts of this many characters take more than a millisecond
REMEDY = "update rwkv-gpu, or set the key to a name that means the same with llama.cpp's gguf_set_metadata.py"


def _byte_letters() -> list[str]:
    """The letter that represents each byte in token texts: itself if printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_LETTERS = _byte_letters()
_LETTER_BYTES = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}


class BpeTokenizer(Tokenizer):
    """Merges by rank within words, which are split as `tokenizer.ggml.pre` specifies."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        pre = _find_pre(read_name(metadata, "pre"))
        vocabulary = read_vocabulary(metadata, Defaults(add_bos=pre.add_bos))
        super().__init__(vocabulary)
        self.clean_spaces = pre.clean_spaces
        self.keeps_text = type(self) is BpeTokenizer and vocabulary.ids.keys() >= set(BYTE_LETTERS)
        merges = read_merges(metadata, vocabulary.ids)
        self._merger = models.BPE(vocab=dict(vocabulary.ids), merges=merges, ignore_merges=pre.ignore_merges)
        self._words = tokenizers.Tokenizer(self._merger)
        self._words.pre_tokenizer = pre_tokenizers.Sequence(
            [split_words(pre), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    def _encode_plain(self, text: bytes, *, opening: bool) -> Iterable[int]:  # noqa: ARG002
        ids: list[int] = []
        for i, run in enumerate(SURROGATES.split(decode_leniently(text))):
            if i % 2:  # surrogates, which `tokenizers` rejects: merged as bytes, as a separate word
                letters = "".join(BYTE_LETTERS[byte] for byte in run.encode("utf-8", "surrogatepass"))
                ids += [token.id for token in self._merger.tokenize(letters)]
            else:
                ids += self._encode_run(run)
        return ids

    def _encode_run(self, run: str) -> list[int]:
        """The ids of a text.

        A long one is split, since `encode` holds the interpreter lock and would block other threads.
        """
        if len(run) <= LONG:
            return self._words.encode(run, add_special_tokens=False).ids
        [encoded] = self._words.encode_batch_fast([run], add_special_tokens=False)
        return encoded.ids

    def _text_of(self, token: int) -> bytes:
        if self.vocabulary.kinds[token] != Kind.NORMAL:
            return b""
        text = self.vocabulary.tokens[token]
        try:
            return bytes([_LETTER_BYTES[letter] for letter in text])
        except KeyError:
            return text.encode()


class HybridDnaTokenizer(BpeTokenizer):
    """Byte-level BPE; between <dna> and </dna>, tokens of six capital bases, the last padded with A."""

    _TAGS, _UNKNOWN = ("<dna>", "</dna>"), "<oov>"
    _SEQUENCE = re.compile(rb"<dna>(.*?)(</dna>|\Z)", re.DOTALL)
    _MARK = "\ue000"  # suffix that distinguishes such a token's text from ordinary tokens
    _BASES = 6

    def _encode_plain(self, text: bytes, *, opening: bool) -> Iterable[int]:
        known = self.vocabulary.ids
        if not {*self._TAGS, self._UNKNOWN} <= known.keys():
            return super()._encode_plain(text, opening=opening)
        ids: list[int] = []
        parts = iter(self._SEQUENCE.split(text))
        for before in parts:
            ids += super()._encode_plain(before, opening=opening)
            bases, end = next(parts, None), next(parts, b"")
            if bases is not None:
                ids += [known[self._TAGS[0]], *self._groups(bases.upper().decode("latin-1"))]
                ids += [known[self._TAGS[1]]] if end else []
        return ids

    def _groups(self, letters: str) -> Iterator[int]:
        for at in range(0, len(letters), self._BASES):
            group = letters[at : at + self._BASES].ljust(self._BASES, "A")
            yield self.vocabulary.ids.get(group + self._MARK, self.vocabulary.ids[self._UNKNOWN])

    def _text_of(self, token: int) -> bytes:
        text = self.vocabulary.tokens[token]
        return text[:-1].encode() if text.endswith(self._MARK) else super()._text_of(token)


def split_words(pre: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """Splits a text at every match of the first pattern, the rest at every match of the second, and so on."""
    splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in pre.patterns]
    return pre_tokenizers.Sequence(splits)


def _find_pre(name: str | None) -> PreTokenizer:
    if name is None:
        warnings.warn(
            f"{PREFIX}pre is missing: words are cut as 'default' does, and the model may read text less well; "
            "convert it again",
            PreTokenizerWarning,
            stacklevel=4,
        )
        return DEFAULT
    if name not in PRE:
        raise UnsupportedModel(
            f"{PREFIX}pre {shown(name)} is not supported: how it splits words is not known; {REMEDY}"
        )
    return PRE[name]
