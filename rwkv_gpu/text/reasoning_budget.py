"""Ends reasoning that reaches its limit: the model then writes a message and the end of its reasoning."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .base import Tokenizer
from .thinking import Marks, Opened
from .utf8 import ends_inside_character

Words = npt.NDArray[np.uint32]
NOT_OPENED = Opened()
REST = 3  # maximum tokens that complete a character


class Inner(Protocol):
    """The interface of a grammar that constrains the whole answer."""

    @property
    def done(self) -> bool:
        """True if nothing more can follow."""

    def mask(self) -> Words:
        """One bit per token, set if it is allowed."""

    def accept(self, token: int) -> None:
        """Advances by a sampled token."""


class ReasoningBudget:
    """The allowed tokens of an answer in which reasoning may have `limit` tokens, as in llama-server.

    A character that the limit splits is completed. Then only the tokens of `message` and of the closing mark are
    allowed. Outside reasoning, `inner` decides; without it, all tokens are allowed. `opened` is the reasoning that the
    prompt has begun, and `last` is the prompt's last token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        marks: Marks,
        limit: int,
        message: str,
        words: int,
        *,
        inner: Inner | None = None,
        opened: Opened = NOT_OPENED,
        last: int | None = None,
    ) -> None:
        self._tokenizer, self._limit, self._words, self._inner = tokenizer, limit, words, inner
        self._marks = {False: marks.opening.encode(), True: marks.closing.encode()}
        self._longest = max(map(len, self._marks.values()))
        self._message, self._closing = message, marks.closing
        self._inside = bool(opened.text) and not opened.closed
        self._seen = b""  # the end of the text
        self._left = limit  # tokens until the reasoning ends
        self._due: Sequence[int] = ()  # tokens that must come next
        if self._inside and limit <= 0:
            self._due = self._ending(opened.due, last)

    @property
    def done(self) -> bool:
        """True if nothing more can follow."""
        return not self._due and self._inner is not None and self._inner.done

    def mask(self) -> Words:
        """One bit per token, set if it is allowed."""
        if self._due:
            words = np.zeros(self._words, np.uint32)
            words[self._due[0] // 32] = 1 << self._due[0] % 32
            return words
        return np.full(self._words, 0xFFFFFFFF, np.uint32) if self._inner is None else self._inner.mask()

    def accept(self, token: int) -> None:
        """Advances by a sampled token."""
        if self._inner is not None:
            self._inner.accept(token)
        if self._due:
            self._due = self._due[1:]
            if not self._due:
                self._inside, self._seen = False, b""
            return
        self._seen += self._tokenizer.piece(token, special=True)
        _, met, after = self._seen.partition(self._marks[self._inside])
        if met:
            self._inside, self._seen, self._left = not self._inside, after, self._limit
        elif self._inside:
            self._left -= 1
        if self._inside and self._left <= 0 and (self._left <= -REST or not ends_inside_character(self._seen)):
            self._due = self._ending("", token)
        self._seen = self._seen[-self._longest :]

    def _ending(self, before: str, last: int | None) -> list[int]:
        """The tokens that end the reasoning after the token `last`."""
        text = self._tokenizer.encode(before + self._message, after=last)
        return [*text, *self._tokenizer.encode(self._closing, parse=True, after=text[-1] if text else last)]
