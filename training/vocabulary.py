"""The model's own vocabulary: byte strings learnt from its texts by joining pairs. Texts are cut by the longest match.

    python -m training.vocabulary 2048 training/vocabulary.txt

Id 0 ends a text, then come the 256 bytes, then what was learnt. No token crosses the end of a word, so that the longest
match can be found word by word.
"""

import collections
import re
import sys
from itertools import pairwise
from pathlib import Path

from .conversation import document

PATH = Path(__file__).parent / "vocabulary.txt"
END = 0
SAMPLES = 12_000
_WORD = re.compile(r"\n\n|\n| ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s|.", re.DOTALL)
_FIXED = ("\n\n", "User", "Assistant", "System", "rwkv", " rwkv")


class Vocabulary:
    """Tokens by id, and how texts are cut into them."""

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        self._ids = {token: i for i, token in enumerate(tokens) if i != END}
        self._known: dict[str, list[int]] = {}
        self._longest = max(map(len, tokens[1:]))

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ids: list[int] = []
        for word in _WORD.findall(text):
            if word not in self._known:
                self._known[word] = self._cut(word.encode())
            ids += self._known[word]
        return ids

    def _cut(self, word: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(word):
            size = next(n for n in range(min(self._longest, len(word) - at), 0, -1) if word[at : at + n] in self._ids)
            ids.append(self._ids[word[at : at + size]])
            at += size
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of ids."""
        return b"".join(self.tokens[i] for i in ids if i != END).decode("utf-8", "replace")


def learn(size: int, texts: list[str]) -> list[bytes]:
    """The bytes, and the pairs of tokens within words that stand together most often, joined one after the other."""
    words = collections.Counter(word for text in texts for word in _WORD.findall(text))
    tokens = [b"", *(bytes([n]) for n in range(256)), *(text.encode() for text in _FIXED)]
    cut = {word: [bytes([byte]) for byte in word.encode()] for word in words if word not in _FIXED}
    pairs: collections.Counter[tuple[bytes, bytes]] = collections.Counter()
    where: dict[tuple[bytes, bytes], set[str]] = collections.defaultdict(set)
    for word, pieces in cut.items():
        for pair in pairwise(pieces):
            pairs[pair] += words[word]
            where[pair].add(word)
    while len(tokens) < size:
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        joined = best[0] + best[1]
        if joined not in tokens:
            tokens.append(joined)
        for word in where.pop(best):
            old = cut[word]
            new = cut[word] = _join(old, best)
            for pair in pairwise(old):
                pairs[pair] -= words[word]
            for pair in pairwise(new):
                pairs[pair] += words[word]
                where[pair].add(word)
        del pairs[best]
    return tokens


def _join(pieces: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    out: list[bytes] = []
    for piece in pieces:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return out


def load(path: Path = PATH) -> Vocabulary:
    """From its file: a token a line, escaped as in a GGUF file."""
    lines = path.read_text(encoding="ascii").splitlines()
    return Vocabulary([b"", *(bytes(line, "ascii").decode("unicode_escape").encode("latin-1") for line in lines)])


def escaped(token: bytes) -> str:
    """As a line of a vocabulary has it."""
    return "".join(chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in token)


if __name__ == "__main__":
    texts = ["".join(text for text, _ in document(-1 - seed)) for seed in range(SAMPLES)]
    learnt = learn(int(sys.argv[1]), texts)
    Path(sys.argv[2]).write_text("".join(escaped(token) + "\n" for token in learnt[1:]), encoding="ascii")
