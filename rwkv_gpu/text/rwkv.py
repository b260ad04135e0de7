"""The RWKV tokenizer: longest match over bytes. Encodes any bytes, and decodes them unchanged."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rwkv_gpu.errors import BadFile
from rwkv_gpu.gguf.cursor import shown
from rwkv_gpu.text.base import Tokenizer
from rwkv_gpu.text.interruption import MASK, check
from rwkv_gpu.text.vocabulary import PREFIX, Defaults, read_vocabulary

# Id 0 ends generation. The usual end of turn, "\n\n", is ordinary text and therefore not a stop token.
DEFAULTS = Defaults(eos=0, named_stops=False)
LONGEST = 1024  # maximum bytes of a token; the World vocabulary has up to 128

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([^x]))", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class RwkvTokenizer(Tokenizer):
    """Greedy longest match in a sorted list of tokens. Memory is linear in the size of the vocabulary.

    Among the sorted tokens, the last one that is not after the text begins with the longest match. So the match is that
    token, or else the longest token that is its prefix, and so on.
    """

    keeps_text = True

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        vocabulary = read_vocabulary(metadata, DEFAULTS)
        self._bytes = [_checked(i, unescape(text)) for i, text in enumerate(vocabulary.tokens)]
        super().__init__(vocabulary)
        missing = {bytes([byte]) for byte in range(256)}.difference(self._bytes)
        if missing:
            raise BadFile(f"{PREFIX}tokens: no token for the byte 0x{min(missing).hex()}")
        self._order = sorted(range(len(self._bytes)), key=self._bytes.__getitem__)  # token ids
        self._sorted = [self._bytes[token] for token in self._order]
        self._parents = _parents(self._sorted)
        self._spans = _spans(self._sorted)
        self._singles = {token[0]: i for i, token in zip(self._order, self._sorted, strict=True) if len(token) == 1}

    def _text_of(self, token: int) -> bytes:
        return self._bytes[token]

    _special_text = _text_of

    def _encode_plain(self, text: bytes, *, opening: bool) -> Iterable[int]:  # noqa: ARG002
        tokens, order, parents, spans, singles = self._sorted, self._order, self._parents, self._spans, self._singles
        ids: list[int] = []
        at, end = 0, len(text)
        while at < end:
            if not len(ids) & MASK:
                check()
            low, high, longest = spans.get(text[at : at + 2], (0, 0, 0))
            i = bisect_right(tokens, text[at : at + longest], low, high) - 1
            while i >= low and not text.startswith(tokens[i], at):
                i = parents[i]
            if i >= low:
                ids.append(order[i])
                at += len(tokens[i])
            else:  # no token with two or more bytes
                ids.append(singles[text[at]])
                at += 1
        return ids


def unescape(text: str) -> bytes:
    """Decodes a token written with Python escapes.

    These are \\t, \\n, \\r and \\xHH; any other escaped character means itself.
    """
    if "\\" not in text:
        return text.encode()
    data = text.encode()
    if _ESCAPE.sub(b"", data).count(b"\\"):
        raise BadFile(f"{PREFIX}tokens: {shown(text)} is not a Python-escaped string")
    return _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]) if m[1] else _NAMED.get(m[2], m[2]), data)


def _checked(token: int, data: bytes) -> bytes:
    if len(data) > LONGEST:
        raise BadFile(f"{PREFIX}tokens: token {token} has {len(data)} bytes, expected at most {LONGEST}")
    return data


def _parents(tokens: Sequence[bytes]) -> list[int]:
    """For each sorted token, the index of the longest other token that is its prefix, or -1."""
    parents: list[int] = []
    path: list[int] = []  # indices of the tokens that are prefixes of the current one, each longer than the one before
    for i, token in enumerate(tokens):
        while path and not token.startswith(tokens[path[-1]]):
            path.pop()
        parents.append(path[-1] if path else -1)
        path.append(i)
    return parents


def _spans(tokens: Sequence[bytes]) -> dict[bytes, tuple[int, int, int]]:
    """By first two bytes: start and end of the sorted tokens that begin with them, and the longest one's length."""
    spans: dict[bytes, tuple[int, int, int]] = {}
    for i, token in enumerate(tokens):
        if len(token) > 1:
            low, _, longest = spans.get(token[:2], (i, i, 0))
            spans[token[:2]] = low, i + 1, max(longest, len(token))
    return spans
