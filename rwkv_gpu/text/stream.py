"""Assembles text from token pieces: whole characters only, with spaces cleaned as the tokenizer requires.

Independent of vocabularies: the caller passes a function from token id to bytes.
"""

import codecs
import re
from collections.abc import Callable

# Tokenization spaces removed in three passes: " ?" -> "?", " ' " -> "'", " 've" -> "'ve".
_CLEANUPS = (
    (re.compile(rb" (?=[?!.,])"), b""),
    (re.compile(rb" ' "), b"'"),
    (re.compile(rb" (?='[sm]|'re|'ve)"), b""),
)


def clean_spaces(text: bytes) -> bytes:
    """`text` without the spaces between words and detached punctuation or contractions."""
    for pattern, replacement in _CLEANUPS:
        text = pattern.sub(replacement, text)
    return text


def settled(text: bytes) -> int:
    """Number of leading bytes of `text` whose cleaned form no longer depends on what follows."""
    end = len(text)
    if text.endswith((b"r", b"v")):
        end -= 1  # may become " 're" or " 've"
    run = len(text[:end].rstrip(b" '"))
    space = text.find(b" ", run, end)
    return len(text) if space < 0 else space


class Detokenizer:
    """Decodes ids one at a time. The results of `feed` and `flush` concatenate to the decoded whole."""

    def __init__(self, piece: Callable[[int], bytes], *, strip_space: bool, clean: bool) -> None:
        self._piece = piece
        self._strip_space = strip_space
        self._clean = clean
        self._held = b""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Returns the text that is certain after `token`: maybe nothing yet, never a partial character."""
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
        """Returns the rest, at the end of the text."""
        rest, self._held = clean_spaces(self._held), b""
        return self._utf8.decode(rest, final=True)
