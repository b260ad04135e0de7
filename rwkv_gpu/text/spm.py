"""SentencePiece-style BPE: merges characters by the score of the resulting token; falls back to bytes."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from rwkv_gpu.text.base import Tokenizer
from rwkv_gpu.text.interruption import steps
from rwkv_gpu.text.special import MATCHED
from rwkv_gpu.text.vocabulary import SPACE, Defaults, read_flag, read_id, read_scores, read_vocabulary

DEFAULTS = Defaults(bos=1, eos=2, add_bos=True)

# Phi-3's special tokens, except these, absorb the spaces after them (from its tokenizer.json; GGUF has no key for it).
PHI3_APART = "<unk>", "<s>", "<|endoftext|>"
# The length of a character by its first byte alone: llama.cpp takes that many bytes without checking them.
_PROMISED = re.compile(rb"[\x00-\xbf]|[\xc0-\xdf].?|[\xe0-\xef].{0,2}|[\xf0-\xff].{0,3}", re.DOTALL)
Pair = tuple[float, int, int, int]  # negative score, left and right symbol, length
_CACHED_WORDS, _CACHED_LENGTH = 1 << 16, 64


class SpmTokenizer(Tokenizer):
    """Merges by score over the whole text, or word by word if no token can cross the boundaries of words."""

    keeps_text = True

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        vocabulary = read_vocabulary(metadata, DEFAULTS)
        super().__init__(vocabulary)
        self.strip_space = read_flag(metadata, "add_space_prefix", True)
        if metadata.get("general.architecture") == "phi3":
            special = (token for token, kind in enumerate(vocabulary.kinds) if kind in MATCHED)
            self.takes_spaces = frozenset(token for token in special if vocabulary.tokens[token] not in PHI3_APART)
        scores = read_scores(metadata, len(vocabulary)).tolist()
        self._scores: dict[str, float] = dict(zip(vocabulary.tokens, scores, strict=True))
        unknown = read_id(metadata, "unknown", len(vocabulary), default=0)
        self.byte_ids = _find_byte_ids(vocabulary.ids, unknown)
        self._pairs = {text[i : i + 2] for text in vocabulary.tokens for i in range(len(text) - 1)}
        self._word_starts = _word_starts(self._pairs)
        self._cache: dict[str, list[int]] = {}

    def _encode_plain(self, text: bytes, *, opening: bool) -> Iterable[int]:
        if opening and self.strip_space:
            text = b" " + text
        text = text.replace(b" ", SPACE.encode())
        try:
            decoded = text.decode()
        except UnicodeDecodeError:
            return self._encode_word([c.decode("utf-8", "surrogateescape") for c in _PROMISED.findall(text)])
        ids: list[int] = []
        for word in steps(pieces(decoded, self._word_starts)):
            known = self._cache.get(word)
            if known is None:
                known = self._encode_word(word)
                self._remember(word, known)
            ids += known
        return ids

    def _remember(self, word: str, ids: list[int]) -> None:
        if len(self._cache) >= _CACHED_WORDS:
            self._cache.clear()
        if len(word) <= _CACHED_LENGTH:
            self._cache[word] = ids

    def _encode_word(self, characters: Sequence[str]) -> list[int]:
        """The ids of these characters, split wherever no token contains two adjacent ones."""
        ids: list[int] = []
        start = 0
        for i in steps(range(1, len(characters))):
            if characters[i - 1][-1] + characters[i][0] not in self._pairs:
                ids += self._merge(characters[start:i])
                start = i
        return ids + self._merge(characters[start:])

    def _merge(self, characters: Sequence[str]) -> list[int]:
        """Merges adjacent pairs by best score, then leftmost, until none makes a token."""
        symbols = list(characters)
        before, after = list(range(-1, len(symbols) - 1)), list(range(1, len(symbols) + 1))
        after[-1] = -1
        queue: list[Pair] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right >= 0:
                text = symbols[left] + symbols[right]
                score = self._scores.get(text)
                if score is not None:
                    heappush(queue, (-score, left, right, len(text)))

        for i in steps(range(len(symbols) - 1)):
            offer(i, i + 1)
        for _, left, right, size in steps(_smallest(queue)):
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != size:
                continue  # one of the two was merged meanwhile
            symbols[left] += symbols[right]
            symbols[right] = ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [token for symbol in symbols if symbol for token in self._ids_of(symbol)]

    def _ids_of(self, symbol: str) -> Sequence[int]:
        token = self.vocabulary.ids.get(symbol)
        if token is not None:
            return (token,)
        return [self.byte_ids[byte] for byte in symbol.encode("utf-8", "surrogateescape")]


def _smallest(queue: list[Pair]) -> Iterator[Pair]:
    """Yields the smallest entry of a heap until it is empty; meanwhile others may be added."""
    while queue:
        yield heappop(queue)


def _find_byte_ids(ids: Mapping[str, int], unknown: int | None) -> list[int]:
    """The token of each byte: <0xXX>, else the character itself, else the unknown token."""
    assert unknown is not None  # every vocabulary has an unknown token, at least id 0
    alone = [ids.get(chr(byte), unknown) for byte in range(128)] + [unknown] * 128
    return [ids.get(f"<0x{byte:02X}>", alone[byte]) for byte in range(256)]


def pieces(text: str, cuts: re.Pattern[str]) -> Iterator[str]:
    """Yields the text between matches. `split` would hold the interpreter lock for all of a long text."""
    at = 0
    for cut in cuts.finditer(text):
        yield text[at : cut.start()]
        at = cut.end()
    yield text[at:]


def _word_starts(pairs: set[str]) -> re.Pattern[str]:
    """Matches before each space that no token joins to the character before it."""
    joined = {pair[0] for pair in pairs if pair[1] == SPACE} | {SPACE}
    return re.compile(f"(?<=[^{re.escape(''.join(sorted(joined)))}])(?={SPACE})")
