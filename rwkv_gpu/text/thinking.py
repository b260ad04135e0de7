"""Separates reasoning from the answer in a stream of text, by the marks around it."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Some text, and which of the two it is."""

    text: str
    thinking: bool


def opens_thinking(prompt: str, opening: str = "<think>") -> bool:
    """Whether a prompt ends with the opening mark, so that reasoning comes next."""
    return prompt.rstrip().endswith(opening)


class Thinking:
    """Splits text at `<think>` and `</think>`. The marks, and line ends right after them, are in neither part.

    `prompt` is what came before: some templates open the reasoning, some close it.
    """

    def __init__(self, prompt: str = "", *, opening: str = "<think>", closing: str = "</think>") -> None:
        self.inside = opens_thinking(prompt, opening)
        self._marks = {False: opening, True: closing}
        self._held = ""
        self._fresh = self.inside or prompt.rstrip().endswith(closing)  # right after a mark

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain now that `text` came, in order; none is empty."""
        return [part for part in self._split(self._held + text) if part.text]

    def flush(self) -> list[Part]:
        """The text that was held back, at its end."""
        rest, self._held = self._held, ""
        return [Part(rest, self.inside)] if rest else []

    def _split(self, text: str) -> Iterator[Part]:
        while True:
            mark = self._marks[self.inside]
            before, met, after = text.partition(mark)
            if not met:
                cut = len(text) - _begun(text, mark)
                self._held = text[cut:]
                yield self._part(text[:cut])
                return
            yield self._part(before)
            self.inside = not self.inside
            self._fresh = True
            text = after

    def _part(self, text: str) -> Part:
        if self._fresh:
            text = text.lstrip("\n")
            self._fresh = not text
        return Part(text, self.inside)


def _begun(text: str, mark: str) -> int:
    """How many characters at the end of a text are the beginning of a mark."""
    return max((n for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0)
