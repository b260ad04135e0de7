"""The output of a chat: answers on standard output, everything else on standard error; styled on a terminal."""

import sys
from typing import Protocol

from rich.console import Console
from rich.text import Text

from rwkv_gpu import Event

from .echo import CONTROLS, echo_text
from .markdown import Markdown
from .printing import folded
from .wrap import Wrap

STYLES = {
    "": "",
    "bold": "bold",
    "italic": "italic",
    "strike": "strike",
    "link": "underline",
    "code": "cyan",
    "source": "",
    "keyword": "magenta",
    "string": "green",
    "number": "yellow",
    "comment": "dim italic",
    "name": "blue",
    "builtin": "cyan",
    "deleted": "red",
    "heading": "bold underline",
    "mark": "dim",
    "quote": "italic",
    "thought": "dim italic",
}


class Terminal(Console):
    """A console that raises the error of a closed pipe, for the command to handle. Rich itself would exit with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class View(Protocol):
    """Shows one answer, event by event."""

    def feed(self, event: Event) -> None:
        """Shows an event."""

    def end(self) -> None:
        """Ends the last line."""


class Screen:
    """Standard output and standard error, each styled if it is a terminal."""

    def __init__(self, *, color: bool = True) -> None:
        plain = None if color else True  # None: rich decides by the environment
        self.out, self.err = (
            Terminal(highlight=False, markup=False, emoji=False, stderr=stderr, no_color=plain)
            for stderr in (False, True)
        )
        self.color = color and not self.out.no_color
        self.fancy = self.out.is_terminal and not self.out.is_dumb_terminal
        self.bars = self.err.is_terminal and not self.err.is_dumb_terminal

    def view(self) -> View:
        """A view for one answer."""
        return Fancy(self.out) if self.fancy else Plain()

    def note(self, text: str, style: str = "dim", hang: int | None = None) -> None:
        """Prints lines about the chat to standard error. On a terminal they break between words."""
        width = self.err.width if self.err.is_terminal else None
        lines = [part for line in text.translate(CONTROLS).split("\n") for part in folded(line, width, hang)]
        self.err.print(Text("\n".join(lines), style), soft_wrap=True)

    def error(self, text: object) -> None:
        """Prints an error in one line."""
        self.note(f"rwkv-gpu: {text}", "red")


class Plain:
    """Prints text as it arrives. Reasoning goes to standard error, so that standard output has only the answer."""

    def __init__(self) -> None:
        self._thinking = False
        self._last = "\n"

    def feed(self, event: Event) -> None:
        if not event.text:
            return
        if self._thinking and not event.thinking:
            print(file=sys.stderr, flush=True)
        self._thinking = event.thinking
        echo_text(event.text, nl=False, err=event.thinking)
        if not event.thinking:
            self._last = event.text[-1]

    def end(self) -> None:
        if self._last != "\n":
            print(flush=True)


class Fancy:
    """Prints styled markdown, with dimmed reasoning."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._answer = Markdown(self._write, lambda: out.width)
        self._reasoning = Wrap(self._write, lambda: out.width)
        self._thinking = False
        self._begun = False

    def feed(self, event: Event) -> None:
        text = event.text.translate(CONTROLS).replace("\t", "    ")
        if not self._begun:
            text = text.lstrip()
        if not text:
            return
        self._begun = True
        if event.thinking:
            self._thinking = True
            self._reasoning.feed(text, "thought")
        else:
            self._end_reasoning()
            self._answer.feed(text)

    def end(self) -> None:
        self._end_reasoning()
        self._answer.flush()
        if self._answer.column:
            self._write("\n", "")

    def _end_reasoning(self) -> None:
        if self._thinking:
            self._thinking = False
            self._reasoning.flush()
            self._write("\n\n" if self._reasoning.column else "\n", "")

    def _write(self, text: str, style: str) -> None:
        if text:
            self._out.print(Text(text, " ".join(STYLES[name] for name in style.split())), end="", soft_wrap=True)
