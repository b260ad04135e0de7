"""Separates reasoning from the answer in a stream of text, by the marks around it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True)
class Part:
    """A piece of text, and whether it is reasoning."""

    text: str
    thinking: bool


def opens_thinking(prompt: str, opening: str = "<think>") -> bool:
    """True if a prompt ends with the opening mark, complete or without its last letter: reasoning comes next."""
    return prompt.rstrip().endswith((opening, opening[:-1]))


class Opened(NamedTuple):
    """The reasoning that a prompt has begun; it may also have ended it."""

    text: str = ""  # the text from the opening mark to the end of the prompt
    due: str = ""  # the last letter of the opening mark if the prompt lacks it: the model generates it first
    closed: bool = False  # whether the answer comes next


def opened(prompt: str, opening: str = "<think>", closing: str = "</think>") -> Opened:
    """The state of reasoning at the end of a prompt. The last mark may lack its last letter, as in RWKV-7 G1."""
    end = prompt.rstrip()
    due = "" if end.endswith((opening, closing)) else opening[-1]
    if opens_thinking(end, opening):
        return Opened(prompt[prompt.rindex(opening[:-1]) :], due)
    if end.endswith(closing[:-1]) and opening in prompt:
        return Opened(prompt[prompt.rindex(opening) :], due, closed=True)
    return Opened()


class Splitter(Protocol):
    """Separates reasoning from the answer in a stream of text."""

    inside: bool  # whether the next text is reasoning

    def feed(self, text: str) -> list[Part]:
        """Returns the parts that are certain after `text`, in order; none is empty."""

    def flush(self) -> list[Part]:
        """Returns the withheld text, at the end."""


@dataclass(frozen=True)
class Marks:
    """The marks that a chat template puts around reasoning."""

    opening: str
    closing: str
    control: bool = False  # whether the marks are control tokens, which decoding hides
    channels: bool = False  # whether each part of an answer has a header with its channel
    around: tuple[str, ...] = ()  # control tokens around the answer, which are not part of it
    wraps: tuple[str, str] | None = None  # texts around an answer that follows reasoning; they are not part of it

    @property
    def answer(self) -> str:
        """The text between reasoning and the answer."""
        return FINAL if self.channels else self.closing

    def splitter(self, prompt: str, *, tools: bool = False) -> Splitter:
        """A splitter for the answer to a prompt that ends like this.

        With `tools`, tool calls are part of the answer.
        """
        return (
            Channels(prompt, tools=tools)
            if self.channels
            else Thinking(prompt, opening=self.opening, closing=self.closing, wraps=self.wraps)
        )


THINK = Marks("<think>", "</think>")
FINAL = "<|channel|>final<|message|>"
TOOL, CALLED = "<|tool|>", "<|call|>"  # marks around a tool call, for the parser of calls that follows
# Keys are strings in the template or vocabulary; the first match is used.
MARKS = {
    "<|channel|>": Marks("<|channel|>analysis<|message|>", "<|end|>", channels=True),
    "<channel|>": Marks("<|channel>thought", "<channel|>", control=True),
    "<|START_THINKING|>": Marks(
        "<|START_THINKING|>", "<|END_THINKING|>", control=True,
        around=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "<think:opensource>": Marks("<think:opensource>", "</think:opensource>"),
    "<mm:think>": Marks("<mm:think>", "</mm:think>"),
    "[THINK]": Marks("[THINK]", "[/THINK]", control=True),
    "<seed:think>": Marks("<seed:think>", "</seed:think>"),
    "<|open|>": Marks(
        "<|open|>think<|sep|>", "<|close|>think<|sep|>", control=True,
        wraps=("<|open|>response<|sep|>", "<|close|>response<|sep|><|close|>message<|sep|>"),
    ),
    "<response>": Marks("<think>", "</think>", wraps=("<response>", "</response>")),
}  # fmt: skip


def marks_of(template: str) -> Marks:
    """The reasoning marks that a chat template uses."""
    return next((marks for text, marks in MARKS.items() if text in template), THINK)


class Channels:
    """Splits an answer in OpenAI's Harmony format: each message has a header, which names its channel, and a body.

    The channel `analysis` and tool calls are reasoning. `commentary` and `final` are the answer, and so is any text
    before the first header. With `tools`, a tool call is part of the answer, between TOOL and CALLED, after the tool's
    name.
    """

    def __init__(self, prompt: str = "", *, tools: bool = False) -> None:
        self._tools = tools
        self._calling = False
        opened = prompt.rpartition("<|start|>")[2]
        _, in_body, _ = opened.rpartition("<|message|>")
        self._header: str | None = None if in_body else opened  # None inside a body
        self.inside = _is_reasoning(opened)
        self._first = self._header is not None  # nothing was generated yet
        self._held = ""

    def feed(self, text: str) -> list[Part]:
        """Returns the parts that are certain after `text`, in order; none is empty."""
        return [part for part in self._split(self._held + text) if part.text]

    def flush(self) -> list[Part]:
        """Returns the withheld text, at the end, except a header."""
        rest, self._held = self._held, ""
        return [Part(rest, self.inside)] if rest and (self._first or self._header is None) else []

    def _split(self, text: str) -> Iterator[Part]:
        if self._first:
            if text not in _OPENINGS and any(start.startswith(text) for start in _OPENINGS):
                self._held = text  # possibly the beginning of a mark
                return
            self._first = False
            if not text.startswith(_OPENINGS):
                self._header, self.inside = None, False
        while True:
            found = _HARMONY.search(text)
            before = text[: found.start()] if found else text[: len(text) - max(begun(text, m) for m in _HARMONY_MARKS)]
            if self._header is None:
                yield Part(before, self.inside)
            else:
                self._header += before
            if found is None:
                self._held = text[len(before) :]
                return
            if self._calling:
                self._calling = False
                yield Part(CALLED, False)
            if found[0] == "<|message|>":
                recipient = _RECIPIENT.search(self._header or "") if self._tools else None
                self.inside, self._header = _is_reasoning(self._header or "") and recipient is None, None
                if recipient:
                    self._calling = True
                    yield Part(f"{TOOL}{recipient[1]}<|message|>", False)
            elif found[0] == "<|channel|>" and self._header is not None:
                self._header += found[0]
            elif found[0] != "<|constrain|>" or self._header is None:
                self._header = found[0]
            text = text[found.end() :]


_HARMONY_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
_HARMONY = re.compile("|".join(map(re.escape, _HARMONY_MARKS)))
_OPENINGS = (*_HARMONY_MARKS, " to=")  # continuations of a header after the role
_RECIPIENT = re.compile(r" to=([^\s<]+)")


def _is_reasoning(header: str) -> bool:
    """True if the body after a header is not part of the answer: analysis, or a tool call."""
    return "analysis" in header or " to=" in header


class Thinking:
    """Splits text at `<think>` and `</think>`. The marks, and line ends right after them, are in neither part.

    `prompt` is the preceding text: some templates open the reasoning, some close it. An answer right after reasoning
    may be wrapped: the wrapping texts are in neither part.
    """

    def __init__(
        self,
        prompt: str = "",
        *,
        opening: str = "<think>",
        closing: str = "</think>",
        wraps: tuple[str, str] | None = None,
    ) -> None:
        begun = opened(prompt, opening, closing)
        self.inside, self._due = opens_thinking(prompt, opening), begun.due
        self._marks = {False: opening, True: closing}
        self._wraps = wraps
        self._wrapped = wraps is not None and prompt.endswith(wraps[0])  # whether the next mark ends the answer
        self._held = ""
        self._fresh = self.inside or begun.closed or prompt.rstrip().endswith(closing)  # right after a mark

    def feed(self, text: str) -> list[Part]:
        """Returns the parts that are certain after `text`, in order; none is empty."""
        if text and self._due:
            text, self._due = text.removeprefix(self._due), ""
        return [part for part in self._split(self._held + text) if part.text]

    def flush(self) -> list[Part]:
        """Returns the withheld text, at the end."""
        part, self._held = self._part(self._held), ""
        return [part] if part.text else []

    def _split(self, text: str) -> Iterator[Part]:
        while True:
            if self._wraps and self._fresh and not (self.inside or self._wrapped):
                text = text.lstrip("\n")
                if len(text) < len(self._wraps[0]) and self._wraps[0].startswith(text):
                    self._held = text  # possibly the beginning of a mark
                    return
                self._wrapped = text.startswith(self._wraps[0])
                text = text.removeprefix(self._wraps[0])
                self._fresh = self._wrapped
            mark = self._wraps[1] if self._wraps and self._wrapped else self._marks[self.inside]
            before, met, after = text.partition(mark)
            if not met:
                cut = len(text) - begun(text, mark)
                self._held = text[cut:]
                yield self._part(text[:cut])
                return
            yield self._part(before)
            if self._wrapped:
                self._wrapped = False
            else:
                self.inside, self._fresh = not self.inside, True
            text = after

    def _part(self, text: str) -> Part:
        if self._fresh:
            text = text.lstrip("\n")
            self._fresh = not text
        return Part(text, self.inside)


def begun(text: str, mark: str) -> int:
    """Number of characters at the end of a text that are the beginning of a mark."""
    return max((n for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0)
