"""What markdown marks within a line: code, bold, italic. A mark that does not open or close anything stays as it is."""

import re
from collections.abc import Callable

MARK = re.compile(r"\\?`+|\\[*_#|]|\*{1,3}|_+|\\$")


class Inline:
    """Feed it the text of a line; it emits styled pieces, and holds a mark back until what follows is known."""

    def __init__(self, emit: Callable[[str, str], None], base: str = "") -> None:
        self._emit = emit
        self.base = base  # the style of all the line
        self._held = ""
        self._before = " "  # the last character that was emitted
        self._code = ""  # the ticks that code began with
        self._open: list[str] = []  # the stars that are open

    def feed(self, text: str) -> None:
        """More of the line."""
        text, self._held = self._held + text, ""
        at = 0
        while found := MARK.search(text, at):
            self._say(text[at : found.start()])
            if found.end() == len(text):  # one more star may follow, and what is after it decides
                self._held = found[0]
                return
            self._mark(found[0], text[found.end()])
            at = found.end()
        self._say(text[at:])

    def end(self) -> None:
        """The line has ended, and with it all that is open."""
        if self._held:
            self._mark(self._held, " ")
        self._held, self._before, self._code, self._open, self.base = "", " ", "", [], ""

    def _mark(self, mark: str, after: str) -> None:
        if "`" in mark and not mark.startswith("\\"):
            self._ticks(mark)
        elif self._code:
            self._say(mark)
        elif mark.startswith("\\"):
            self._say(mark[1:] or mark)
        elif mark.startswith("__"):  # more often __init__ than bold
            self._say(mark)
        elif self._open and self._open[-1] == mark and not self._before.isspace():
            self._open.pop()
        elif not after.isspace() and not self._before.isalnum() and mark not in self._open:
            self._open.append(mark)
        elif mark == "***" and len(self._open) == 2:
            self._open.clear()
        else:
            self._say(mark)

    def _ticks(self, ticks: str) -> None:
        if not self._code:
            self._code = ticks
        elif self._code == ticks:
            self._code = ""
        else:
            self._say(ticks)

    def _say(self, text: str) -> None:
        if text:
            self._emit(text, "code" if self._code else self._style())
            self._before = text[-1]

    def _style(self) -> str:
        """The name of what is open."""
        stars = max((len(mark) for mark in self._open), default=0) if len(self._open) < 2 else 3
        return {0: self.base, 1: "italic", 2: "bold", 3: "bold italic"}[stars]
