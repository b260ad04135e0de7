"""What was said, as text and as the very ids that said it, so that it is never tokenised anew. Knows no templates.

A prompt is taken apart at the last place where its text still agrees with what was said and a token ends there: up to
it the ids are the old ones, and only the rest is tokenised.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Cut:
    """A place where a token ends: so many bytes of the text are so many of the ids."""

    nbytes: int
    ids: int


START = Cut(0, 0)


@dataclass(frozen=True)
class Transcript:
    """A text and its ids. Never changed: a new one is made of it."""

    text: bytes = b""
    ids: tuple[int, ...] = ()
    cuts: tuple[Cut, ...] = (START,)  # in order; not every token's end is known

    def common(self, text: bytes) -> Cut:
        """The last cut before which this and another text are the same."""
        size = _agreement(self.text, text)
        return self.cuts[bisect_right(self.cuts, size, key=lambda cut: cut.nbytes) - 1]

    def until(self, cut: Cut) -> "Transcript":
        """The part before a cut."""
        cuts = self.cuts[: self.cuts.index(cut) + 1]
        return Transcript(self.text[: cut.nbytes], self.ids[: cut.ids], cuts)

    def prompt(self, tokenizer: Tokenizer, pieces: Iterable[str]) -> "Transcript":
        """A prompt in pieces, whose ends become cuts, with the ids of this as far as the texts agree."""
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
        """This, and then these tokens."""
        nbytes, cuts, pieces = len(self.text), [*self.cuts], [self.text]
        for n, token in enumerate(tokens, len(self.ids) + 1):
            pieces.append(tokenizer.piece(token, special=True))
            nbytes += len(pieces[-1])
            cuts.append(Cut(nbytes, n))
        return Transcript(b"".join(pieces), (*self.ids, *tokens), tuple(cuts))

    def _grown(self, tokenizer: Tokenizer, text: bytes) -> "Transcript":
        after = self.ids[-1] if self.ids else None
        ids = tokenizer.encode(text, parse=True, after=after)
        if after is None and tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
            ids = [tokenizer.bos, *ids]
        ids = [*self.ids, *ids]
        whole = self.text + text
        return Transcript(whole, tuple(ids), (*self.cuts, Cut(len(whole), len(ids))))


def _agreement(first: bytes, second: bytes) -> int:
    """How many bytes at the start of two texts are the same."""
    size = min(len(first), len(second))
    if first[:size] == second[:size]:
        return size
    a, b = (np.frombuffer(text, np.uint8, size) for text in (first, second))
    return int(np.flatnonzero(a != b)[0])


def as_bytes(text: str) -> bytes:
    """The bytes of a text; what `as_text` could not decode is what it was."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def as_text(said: bytes) -> str:
    """A text that `as_bytes` makes these bytes of, whatever they are: a model may stop in the middle of a character."""
    return said.decode("utf-8", "surrogateescape")
