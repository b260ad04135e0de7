"""The RWKV tokenizer: the longest token that matches, over bytes. Any bytes go in and come back."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rwkv_gpu.errors import BadFile
from rwkv_gpu.text.base import BaseTokenizer
from rwkv_gpu.text.vocabulary import PREFIX, Defaults, read_vocabulary

# Id 0 ends generation. The usual end of turn, "\n\n", is ordinary text and so no stop token.
DEFAULTS = Defaults(eos=0, named_stops=False)

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([^x]))", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class RwkvTokenizer(BaseTokenizer):
    """Greedy longest match, found by bisection: a token's every prefix is known, so matching is monotone in length."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        vocabulary = read_vocabulary(metadata, DEFAULTS)
        self._bytes = [unescape(text) for text in vocabulary.tokens]
        super().__init__(vocabulary)
        missing = {bytes([byte]) for byte in range(256)}.difference(self._bytes)
        if missing:
            raise BadFile(f"{PREFIX}tokens: no token for the byte 0x{min(missing).hex()}")
        self._longest, self._reach = _index(self._bytes)
        self._lengths = [len(token) for token in self._bytes]

    def _text_of(self, token: int) -> bytes:
        return self._bytes[token]

    _special_text = _text_of

    def _encode_plain(self, text: bytes, *, opening: bool) -> Iterable[int]:  # noqa: ARG002
        longest, reach, lengths = self._longest, self._reach, self._lengths
        ids: list[int] = []
        at, end = 0, len(text)
        while at < end:
            known, beyond = 1, reach.get(text[at : at + 2], 1) + 1  # a prefix of `known` bytes matches, of `beyond` not
            while beyond - known > 1:
                middle = (known + beyond) >> 1
                if text[at : at + middle] in longest:
                    known = middle
                else:
                    beyond = middle
            token = longest[text[at : at + known]]
            ids.append(token)
            at += lengths[token]
        return ids


def unescape(text: str) -> bytes:
    """The bytes of a token written as Python writes them: \\t, \\n, \\r, \\xHH, and any other character for itself."""
    if "\\" not in text:
        return text.encode()
    data = text.encode()
    if _ESCAPE.sub(b"", data).count(b"\\"):
        raise BadFile(f"{PREFIX}tokens: {text!r} is not a Python-escaped string")
    return _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]) if m[1] else _NAMED.get(m[2], m[2]), data)


def _index(tokens: list[bytes]) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """For every prefix of a token the longest token within it, and for every two first bytes how long tokens get."""
    longest: dict[bytes, int] = {}
    reach: dict[bytes, int] = {}
    for token in sorted(range(len(tokens)), key=lambda i: len(tokens[i])):
        text = tokens[token]
        # Shorter tokens are in already, so a new prefix holds no longer one than the prefix before it does.
        for n in range(1, len(text)):
            if text[:n] not in longest:
                longest[text[:n]] = longest[text[: n - 1]]
        longest[text] = token
        reach[text[:2]] = len(text)
    return longest, reach
