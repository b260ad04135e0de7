"""Converts the tokens of an answer to text: whole characters, reasoning separated, up to a stop string."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..text.base import Tokenizer
from ..text.stops import StopStrings
from ..text.thinking import Part, Splitter


@dataclass(frozen=True)
class Ends:
    """Strings that end an answer and are never shown, for the answer and for the reasoning before it."""

    answer: Sequence[str]
    reasoning: Sequence[str] = ()


class Reader:
    """The text of one answer. `thinking` separates reasoning, and removes white space at the start of the answer.

    `closing` are tokens that end an answer and whose text is not part of it, such as RWKV's "\\n\\n". `control` passes
    control tokens, which mark reasoning, to `thinking`, except those in `hidden`. With `goes_on`, the answer continues
    a text, so white space at its start is kept.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        ends: Ends,
        thinking: Splitter | None = None,
        closing: frozenset[int] = frozenset(),
        *,
        control: bool = False,
        hidden: frozenset[int] = frozenset(),
        goes_on: bool = False,
        schema: Any = None,
        prompt: str | None = None,
    ) -> None:
        self.schema = schema  # the class of the parsed answer, if any
        self.prompt = prompt  # the text that the answer continues, if it is one
        self._closing = closing
        self._hidden = hidden
        self._text = tokenizer.stream(special=control, continues=True)
        self._thinking = thinking
        self._stops = {False: StopStrings(ends.answer), True: StopStrings(ends.reasoning)}
        self.thinking = thinking is not None and thinking.inside  # whether the next text is reasoning
        self._blank = thinking is not None and not goes_on  # only white space was seen in this part so far

    @property
    def stopped(self) -> str | None:
        """The stop string that was found."""
        return self._stops[False].stopped or self._stops[True].stopped

    def feed(self, token: int, last: bool = False) -> list[Part]:
        """Returns the text that this token completes; empty after a stop string, and for a closing token."""
        if token in self._hidden or (last and token in self._closing):
            return []
        return self._take(self._text.feed(token))

    def flush(self) -> list[Part]:
        """Returns the withheld text, at the end of the answer."""
        parts = self._take(self._text.flush())
        if self._thinking is not None:
            for part in self._thinking.flush():
                parts += self._show(part)
        return parts + self._leave()

    def _take(self, text: str) -> list[Part]:
        if not text or self.stopped is not None:
            return []
        split = [Part(text, False)] if self._thinking is None else self._thinking.feed(text)
        return [shown for part in split for shown in self._show(part)]

    def _show(self, part: Part) -> list[Part]:
        """Returns the text that cannot be part of a stop string."""
        left: list[Part] = []
        if part.thinking != self.thinking:
            left = self._leave()
            self.thinking, self._blank = part.thinking, True
        if self.stopped is not None:
            return left
        text, _ = self._stops[part.thinking].feed(part.text)
        return left + self._trimmed(text)

    def _leave(self) -> list[Part]:
        """Returns the withheld text of a part (reasoning or answer) that ends."""
        return [] if self.stopped is not None else self._trimmed(self._stops[self.thinking].flush())

    def _trimmed(self, text: str) -> list[Part]:
        if self._blank:
            text = text.lstrip()
            self._blank = not text
        return [Part(text, self.thinking)] if text else []
