"""Pieces of text put together as they come: whole characters only, spaces cleaned as the tokenizer wants it.

Knows bytes, not vocabularies: the caller passes a function from a token id to bytes.
"""

import codecs
import re
from collections.abc import Callable

# What the clean-up of tokenization spaces takes away, in three passes: " ?" -> "?", " ' " -> "'", " 've" -> "'ve".
_CLEANUPS = (
    (re.compile(rb" (?=[?!.,])"), b""),
    (re.compile(rb" ' "), b"'"),
    (re.compile(rb" (?='[sm]|'re|'ve)"), b""),
)


def clean_spaces(text: bytes) -> bytes:
    """`text` without the spaces that detached punctuation and contractions from their words."""
    for pattern, replacement in _CLEANUPS:
        text = pattern.sub(replacement, text)
    return text


def settled(text: bytes) -> int:
    """How many leading bytes of `text` clean up the same whatever follows."""
    end = len(text)
    if text.endswith((b"r", b"v")):
        end -= 1  # may become " 're" or " 've"
    run = len(text[:end].rstrip(b" '"))
    space = text.find(b" ", run, end)
    return len(text) if space < 0 else space


class Detokenizer:
    """Ids in, text out, one at a time. What `feed` and `flush` return is, put together, the decoded whole."""

    def __init__(self, piece: Callable[[int], bytes], *, strip_space: bool, clean: bool) -> None:
        self._piece = piece
        self._strip_space = strip_space
        self._clean = clean
        self._held = b""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that is certain now that `token` came: perhaps nothing yet, never half a character."""
        text = self._piece(token)
        if self._strip_space and text:
            text = text.removeprefix(b" ")
            self._strip_space = False
        if self._clean:
            text = self._held + text
            cut = settled(text)
            self._held = text[cut:]
            text = clean_spaces(text[:cut])
        return self._utf8.decode(text)

    def flush(self) -> str:
        """The rest, at the end of the text."""
        rest, self._held = clean_spaces(self._held), b""
        return self._utf8.decode(rest, final=True)
