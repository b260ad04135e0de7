"""Answers that quote: the built-in model reads passages of the documentation with a question, and repeats one of them.

What it may generate is held to the passages, token by token, so that a quotation is word for word.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..builtin.help import Found, Help, with_passages
from ..text.tokenizer import Tokenizer

Message = Mapping[str, object]


class Quotation:
    """The grammar of an answer that is one of some texts, or, where that is `optional`, one that begins otherwise."""

    def __init__(self, texts: Sequence[Sequence[int]], vocabulary: int, *, optional: bool = False) -> None:
        self._left = [tuple(text) for text in texts]  # what remains possible
        self._words = -(-vocabulary // 32)
        self._optional = optional
        self._at = 0

    @property
    def done(self) -> bool:
        """Whether a text is complete."""
        return any(len(text) == self._at for text in self._left) and self._at > 0

    def mask(self) -> npt.NDArray[np.uint32]:
        """A bit for each token, set where it is allowed. [ceil(V / 32)]"""
        if not self._left or (self._optional and self._at == 0):
            return np.full(self._words, 0xFFFFFFFF, np.uint32)
        words = np.zeros(self._words, np.uint32)
        for text in self._left:
            token = text[self._at]
            words[token // 32] |= np.uint32(1 << token % 32)
        return words

    def accept(self, token: int) -> None:
        """Keeps the texts that go on with this token."""
        self._left = [text for text in self._left if text[self._at] == token]
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


def quotation(found: Found, tokenizer: Tokenizer, vocabulary: int) -> Quotation | None:
    """What holds an answer to those that were found; None where there are none."""
    if not found.answers:
        return None
    texts = [tokenizer.encode(" " + answer) for answer in found.answers]
    return Quotation(texts, vocabulary, optional=not found.sure)
