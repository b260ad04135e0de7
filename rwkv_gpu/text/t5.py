"""SentencePiece's unigram model, as in T5 and XLM-RoBERTa: splits a text so that the sum of scores is maximal.

The text is first normalised by the file's character map and space rules.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from rwkv_gpu.errors import BadFile
from rwkv_gpu.text.base import Tokenizer
from rwkv_gpu.text.charsmap import CharacterMap
from rwkv_gpu.text.interruption import MASK, check, steps
from rwkv_gpu.text.matches import Matches
from rwkv_gpu.text.utf8 import is_utf8
from rwkv_gpu.text.vocabulary import (
    PREFIX,
    SPACE,
    Defaults,
    Kind,
    read_flag,
    read_id,
    read_kinds,
    read_scores,
    read_vocabulary,
)

DEFAULTS = Defaults(eos=1, add_eos=True)
UNKNOWN = 2
PENALTY = np.float32(10)  # cost of an unknown character, in addition to that of the worst token
_USED = (Kind.NORMAL, Kind.USER_DEFINED, Kind.UNUSED)
_MARK = SPACE.encode()
_WORD = re.compile(b"(?<!%b)(?=%b)" % (_MARK, _MARK))
_CACHED_WORDS, _CACHED_LENGTH = 1 << 16, 64
_CHARACTER = re.compile(rb"[\x00-\x7f]|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}")
_SIZES = [1] * 192 + [2] * 32 + [3] * 16 + [4] * 16  # bytes of a character, by its first byte
# Models whose <mask> absorbs the spaces before it. GGUF has no key for it.
MASKS_TAKE_SPACES = ("nomic-bert-moe", "jina-bert-v3")


class T5Tokenizer(Tokenizer):
    """The best path through a text, character by character. Consecutive unknown characters form one token."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        vocabulary = read_vocabulary(metadata, DEFAULTS)
        super().__init__(vocabulary)
        unknown = read_id(metadata, "unknown", len(vocabulary), UNKNOWN)
        if unknown is None:
            raise BadFile(f"{PREFIX}unknown_token_id is missing")
        self._unknown = unknown
        self.strip_space = read_flag(metadata, "add_space_prefix", False)
        self._joins_spaces = read_flag(metadata, "remove_extra_whitespaces", False)
        if metadata.get("general.architecture") in MASKS_TAKE_SPACES and "<mask>" in vocabulary.ids:
            self.takes_spaces_before = frozenset([vocabulary.ids["<mask>"]])
        self._map = CharacterMap(metadata)
        kinds = read_kinds(metadata, len(vocabulary))  # read before tokens with certain names become control tokens
        texts = [text.encode() for text in vocabulary.tokens]
        scores = read_scores(metadata, len(vocabulary)).astype(np.float32)
        normal = scores[np.frombuffer(kinds, np.uint8) == Kind.NORMAL]
        worst = normal.min() if len(normal) else np.finfo(np.float32).max
        self._unknown_score = float(worst - PENALTY)
        self._scores = [0.0 if kinds[i] == Kind.USER_DEFINED else score for i, score in enumerate(scores.tolist())]
        self._tokens = Matches({text: i for i, text in enumerate(texts) if kinds[i] in _USED})
        self._cuts = not any(_WORD.search(text, 1) for i, text in enumerate(texts) if kinds[i] in _USED)
        self._cached: Callable[[bytes], list[int]] = lru_cache(_CACHED_WORDS)(self._best)
        self._whole = sorted(text for i, text in enumerate(texts) if kinds[i] == Kind.USER_DEFINED)
        self._starts = frozenset(text[0] for text in self._whole)
        same = self._map.same(bytes(byte for byte in range(128) if byte not in self._starts))
        self._same = re.compile(b"(?:%b)+" % same)

    def _encode_plain(self, text: bytes, *, opening: bool) -> Iterable[int]:
        ids: list[int] = []
        for word in steps(self._words(self._mark_spaces(self._normalise(text), opening=opening))):
            ids += self._cached(word) if len(word) <= _CACHED_LENGTH else self._best(word)
        return [token for i, token in enumerate(ids) if token != self._unknown or ids[i - 1 : i] != [token]]

    def _normalise(self, text: bytes) -> bytes:
        """The text with mapped sequences replaced, and U+FFFD for each byte that does not start a character."""
        out = bytearray()
        at = 0
        while at < len(text):
            kept = self._same.match(text, at)
            end = kept.end() if kept else at + self._kept(text, at) if text[at] in self._starts else at
            if end > at:
                out += text[at:end]
                at = end
                continue
            end, replacement = self._map.longest(text, at)
            if end == at:
                character = _CHARACTER.match(text, at)
                replacement, end = (character[0], character.end()) if character else ("\ufffd".encode(), at + 1)
            out += replacement
            at = end
        return bytes(out)

    def _kept(self, text: bytes, at: int) -> int:
        """Number of bytes at `at` that stay unchanged, because a user-defined token begins with them.

        As in llama.cpp, they stay unchanged even if the rest of the token does not follow.
        """
        for end in range(at + 1, len(text) + 1):
            place = bisect_left(self._whole, text[at:end])
            if not any(token.startswith(text[at:end]) for token in self._whole[place : place + 1]):
                return end - 1 - at
        return len(text) - at

    def _mark_spaces(self, text: bytes, *, opening: bool) -> bytes:
        """Spaces as ▁, one before each word or all of them; `opening` adds one in front if the file specifies it."""
        if self._joins_spaces:
            marked = b"".join([_MARK + word for word in text.split(b" ") if word])
            return marked if opening or text[:1] in (b"", b" ") else marked.removeprefix(_MARK)
        prefix = _MARK if self.strip_space and opening and text.strip(b" ") else b""
        return prefix + text.replace(b" ", _MARK)

    def _words(self, text: bytes) -> Iterator[bytes]:
        """Splits `text` before each ▁ that no token crosses: the best paths of the parts form the best path."""
        at = 0
        if self._cuts and is_utf8(text):
            for cut in _WORD.finditer(text):
                yield text[at : cut.start()]
                at = cut.start()
        yield text[at:]

    def _best(self, text: bytes) -> list[int]:
        """Returns the ids of the best path, by dynamic programming over positions.

        Among equal paths, the first wins.
        """
        scores = [0.0] + [-math.inf] * len(text)
        starts, tokens = [0] * (len(text) + 1), [self._unknown] * (len(text) + 1)
        start = 0
        while start < len(text):
            if not start & MASK:
                check()
            so_far = scores[start]
            after = min(start + _SIZES[text[start]], len(text))
            is_known = False
            for end, token in self._tokens.at(text, start):
                is_known |= end == after
                score = so_far + self._scores[token]
                if score > scores[end]:
                    scores[end], starts[end], tokens[end] = score, start, token
            if not is_known and so_far + self._unknown_score > scores[after]:
                scores[after], starts[after], tokens[after] = so_far + self._unknown_score, start, self._unknown
            start = after
        ids: list[int] = []
        end = len(text)
        while end:
            ids.append(tokens[end])
            end = starts[end]
        return ids[::-1]
