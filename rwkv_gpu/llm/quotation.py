"""Answers that quote: the built-in model reads passages of the documentation with a question, and repeats them.

A grammar of one text constrains the answer token by token, so that a quotation is word for word. Where it is not sure
that the question is about the program, the model decides: it begins the quotation, or another answer. Other answers
cannot begin as quotations do.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..builtin.help import FROM, Found, Help, with_passages
from ..text.tokenizer import Tokenizer

Message = Mapping[str, object]


class Quotation:
    """The grammar of an answer that is a text, or, where that is `optional`, one that begins otherwise.

    No other answer begins with a token of `never`: what looks like a quotation is one.
    """

    def __init__(
        self, text: Sequence[int], vocabulary: int, *, optional: bool = False, never: Collection[int] = ()
    ) -> None:
        self._text = tuple(text)
        self._words = -(-vocabulary // 32)
        self._never = frozenset(never) - frozenset(text[:1])
        self._optional = optional
        self._free = False  # another answer was begun
        self._at = 0

    @property
    def done(self) -> bool:
        """Whether the text is complete."""
        return 0 < self._at == len(self._text)

    def mask(self) -> npt.NDArray[np.uint32]:
        """A bit for each token, set where it is allowed. [ceil(V / 32)]"""
        if self._free or (self._optional and self._at == 0):
            return ~_bits(() if self._free else self._never, self._words)
        return _bits(self._text[self._at : self._at + 1], self._words)

    def accept(self, token: int) -> None:
        """Goes on with this token."""
        if self._free or self._text[self._at : self._at + 1] != (token,):
            self._free = True
        else:
            self._at += 1


def add_passages(messages: Sequence[Message], help: Help) -> tuple[list[Message], Found]:
    """Messages in which each question has the passages that were found for it, and those of the last one.

    They depend on the messages alone, so that a prompt always begins with the one of the turn before.
    """
    found, before, added = Found(), "", list[Message]()
    for message in messages:
        found = Found()
        content = message.get("content")
        if message.get("role") == "user" and isinstance(content, str):
            found = help.find(content, before)
            before = content
            message = {**message, "content": with_passages(content, found.passages)}
        added.append(message)
    return added, found


def quotation(found: Found, tokenizer: Tokenizer, vocabulary: int) -> Quotation:
    """The grammar of the answer that was found; where there is none, of any answer but one that looks like it."""
    text = tokenizer.encode(" " + found.answer) if found.answer else []
    return Quotation(text, vocabulary, optional=not found.sure, never=tokenizer.encode(" " + FROM)[:1])


def _bits(tokens: Iterable[int], words: int) -> npt.NDArray[np.uint32]:
    mask = np.zeros(words, np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask
