"""A text with the token ids that produced it, so that it is never tokenised again. Uses no templates.

A new prompt is compared with the text. The ids are kept up to the last token boundary where both agree; only the rest
is tokenised.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from ..text.base import Tokenizer


@dataclass(frozen=True)
class TokenBoundary:
    """A token boundary: the first `nbytes` of the text are the first `ids` ids."""

    nbytes: int
    ids: int


START = TokenBoundary(0, 0)
_nbytes = attrgetter("nbytes")


@dataclass(frozen=True)
class Transcript:
    """A text and its ids. Immutable: methods return a new one."""

    text: bytes = b""
    ids: tuple[int, ...] = ()
    cuts: tuple[TokenBoundary, ...] = (START,)  # in order; not every token boundary is known

    def common(self, text: bytes) -> TokenBoundary:
        """The last cut up to which this text and another agree, without tokens after it that have no text."""
        size = _agreement(self.text, text)
        last = self.cuts[bisect_right(self.cuts, size, key=_nbytes) - 1]
        return self.cuts[bisect_left(self.cuts, last.nbytes, key=_nbytes)]

    def until(self, cut: TokenBoundary) -> "Transcript":
        """The part before a cut."""
        cuts = self.cuts[: self.cuts.index(cut) + 1]
        return Transcript(self.text[: cut.nbytes], self.ids[: cut.ids], cuts)

    def prompt(self, tokenizer: Tokenizer, pieces: Iterable[str]) -> "Transcript":
        """Returns a prompt, given in pieces whose ends become cuts. Keeps these ids as far as the texts agree."""
        ends, text = [], b""
        for piece in pieces:
            text += as_bytes(piece)
            ends.append(len(text))
        begun = self.until(self.common(text))
        for end in ends:
            if end > len(begun.text):
                begun = begun._grown(tokenizer, text[len(begun.text) : end])
        return begun

    def append(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> "Transcript":
        """Returns this transcript followed by tokens."""
        nbytes, cuts, pieces = len(self.text), [*self.cuts], [self.text]
        for n, token in enumerate(tokens, len(self.ids) + 1):
            pieces.append(tokenizer.piece(token, special=True))
            nbytes += len(pieces[-1])
            cuts.append(TokenBoundary(nbytes, n))
        return Transcript(b"".join(pieces), (*self.ids, *tokens), tuple(cuts))

    def _grown(self, tokenizer: Tokenizer, text: bytes) -> "Transcript":
        after = self.ids[-1] if self.ids else None
        ids = tokenizer.encode(text, parse=True, after=after)
        if after is None and tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
            ids = [tokenizer.bos, *ids]
        ids = [*self.ids, *ids]
        whole = self.text + text
        return Transcript(whole, tuple(ids), (*self.cuts, TokenBoundary(len(whole), len(ids))))


def _agreement(first: bytes, second: bytes) -> int:
    """The length of the common prefix of two texts."""
    size = min(len(first), len(second))
    if first[:size] == second[:size]:
        return size
    a, b = (np.frombuffer(text, np.uint8, size) for text in (first, second))
    return int(np.flatnonzero(a != b)[0])


def as_bytes(text: str) -> bytes:
    """The bytes of a text, the inverse of `as_text`."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def as_text(data: bytes) -> str:
    """Decodes any bytes, even an incomplete character: a model may stop inside one. `as_bytes` is the inverse."""
    return data.decode("utf-8", "surrogateescape")
