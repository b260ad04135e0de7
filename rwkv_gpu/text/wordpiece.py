"""WordPiece, as in BERT: words without accents and capitals, each split into the longest tokens from its start.

Ids equal those of llama.cpp. Each character becomes a single one: the first of its decomposition, in lower case. For
characters that are newer than Unicode 14, Python's tables apply.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from rwkv_gpu.errors import BadFile
from rwkv_gpu.text.base import Tokenizer
from rwkv_gpu.text.interruption import MASK, check, steps
from rwkv_gpu.text.matches import Matches
from rwkv_gpu.text.spm import pieces
from rwkv_gpu.text.utf8 import decode_leniently
from rwkv_gpu.text.vocabulary import PREFIX, SPACE, Defaults, read_flag, read_id, read_vocabulary

CLS, UNKNOWN, SEP = 101, 100, 102  # ids in BERT's own vocabulary
DEFAULTS = Defaults(bos=CLS, eos=SEP)
_SPACES = re.compile(" +")
# Characters that are separate words: Chinese ones, except U+2B820 to U+2B91F.
_CHINESE = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b920-\U0002ceaf"
    "\U0002f800-\U0002fa1f]"
)
_SEPARATORS = "\x1c\x1d\x1e\x1f"  # white space in Python, but control characters here


class WordPieceTokenizer(Tokenizer):
    """A word that tokens do not cover completely becomes one unknown token. [CLS] and [SEP] surround the text."""

    clean_spaces = True

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        vocabulary = read_vocabulary(metadata, DEFAULTS)
        super().__init__(vocabulary)
        self.strip_space = read_flag(metadata, "add_space_prefix", False)
        cls = read_id(metadata, "cls", len(vocabulary), CLS)
        self.bos = _read(metadata, "bos", len(vocabulary), cls)
        self.eos = _read(metadata, "seperator", len(vocabulary), SEP)  # this is how files spell it
        self.add_bos = self.add_eos = True
        self._unknown = _read(metadata, "unknown", len(vocabulary), UNKNOWN)
        lowercase = read_flag(metadata, "normalizer.lowercase", True)
        strip_accents = read_flag(metadata, "normalizer.strip_accents", lowercase)
        self._forms = _Forms(lowercase=lowercase, strip_accents=strip_accents)
        self._tokens = Matches({text.encode(): token for text, token in vocabulary.ids.items()})

    def _encode_plain(self, text: bytes, *, opening: bool) -> Iterable[int]:  # noqa: ARG002
        ids: list[int] = []
        for part in steps(pieces(decode_leniently(text), _SPACES)):
            for word in steps(part.translate(self._forms).split()):
                ids += self._encode_word((SPACE + word).encode())
        return ids

    def _encode_word(self, word: bytes) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(word):
            if not len(ids) & MASK:
                check()
            found = self._tokens.at(word, start)
            if not found:
                return [self._unknown]
            start, token = found[-1]  # the longest
            ids.append(token)
        return ids


class _Forms(dict[int, str]):
    """The form of a character: a letter of words, a space, nothing, or a separate word. Computed at first use."""

    def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
        self._lowercase, self._strip_accents = lowercase, strip_accents

    def __missing__(self, point: int) -> str:
        form = self[point] = self._form(chr(point))
        return form

    def _form(self, character: str) -> str:
        if self._strip_accents:
            character = unicodedata.normalize("NFD", character)[0]
        category = unicodedata.category(character)
        if character.isspace() and character not in _SEPARATORS:
            return " "
        if category in ("Cc", "Cf", "Co", "Cs") or character == "\ufffd":
            return ""
        if self._strip_accents and category[0] == "M":
            return ""
        apart = category[0] == "P" or (category[0] == "S" and character.isascii()) or _CHINESE.match(character)
        form = character.lower()[0] if self._lowercase else character
        return f" {form} " if apart else form


def _read(metadata: Mapping[str, Any], role: str, count: int, default: int | None) -> int:
    token = read_id(metadata, role, count, default)
    if token is None:
        raise BadFile(f"{PREFIX}{role}_token_id is missing, and the vocabulary has too few tokens for BERT's own")
    return token
