"""Inline markdown: code, bold, italic, strike-through and links. Unmatched marks are printed as they are."""

import re
from collections.abc import Callable

MARK = re.compile(r"\\?`+|\\[*_#|~\[]|!?\[|!$|<|\*{1,3}|_+|~+|\\$")
TITLE = r'(?: +"[^"]{0,300}")?'
TARGET = r"<[^<>\n]{0,1000}>|[^\s()<]{0,1000}(?:\([^\s()]{0,200}\)[^\s()]{0,200}){0,3}"
LINK = re.compile(rf"!?\[([^\[\]\n]{{0,300}})\]\( ?({TARGET}){TITLE} ?\)")
MAY_BE_LINK = re.compile(r'!?\[([^\[\]\n]{0,300}(\](\( ?(<[^<>\n]*>?|[^\s<]*)( +("[^"]*"?)? ?)?)?)?)?')
ADDRESS = re.compile(r"<((?:https?://|mailto:)[^\s<>]{1,1000})>")
MAY_BE_ADDRESS = re.compile(r"<(https?://|mailto:)[^\s<>]{0,1000}")
ADDRESSES = ("<http://", "<https://", "<mailto:")
STRIKE = "~~"


class Inline:
    """Converts the text of a line to styled pieces. Text that may still become a mark or a link is withheld.

    A style consists of names in `screen.STYLES`, separated by spaces.
    """

    def __init__(self, emit: Callable[[str, str], None]) -> None:
        self._emit = emit
        self.base = ""  # the style of the whole line
        self._held = ""
        self._before = " "  # last emitted character
        self._code = ""  # the backticks that opened the current code
        self._open: list[str] = []  # open marks

    def feed(self, text: str) -> None:
        """Adds text of the line."""
        self._read(self._held + text, ended=False)

    def end(self) -> None:
        """Ends the line, and everything open in it."""
        self._read(self._held, ended=True)
        self._held, self._before, self._code, self._open, self.base = "", " ", "", [], ""

    def _read(self, text: str, *, ended: bool) -> None:
        self._held = ""
        at = 0
        while found := MARK.search(text, at):
            self._show(text[at : found.start()])
            at, mark = found.start(), found[0]
            if mark in ("[", "![", "<", "!") and not self._code:
                taken = self._link(text, at, ended=ended)
            elif found.end() == len(text) and not ended:  # the mark may continue, and the next character decides
                taken = None
            else:
                self._mark(mark, text[found.end() : found.end() + 1] or " ")
                taken = len(mark)
            if taken is None:
                self._held = text[at:]
                return
            at += taken
        self._show(text[at:])

    def _link(self, text: str, at: int, *, ended: bool) -> int | None:
        """Shows a link, or a character that does not begin one. Returns the number of characters consumed.

        Returns None if more text is needed to decide.
        """
        if link := LINK.match(text, at):
            self._show_link(link[1].replace("\\", ""), link[2].strip("<>"))
            return len(link[0])
        if address := ADDRESS.match(text, at):
            self._show_link("", address[1])
            return len(address[0])
        rest = text[at:]
        begun = MAY_BE_LINK.fullmatch(rest) or MAY_BE_ADDRESS.fullmatch(rest) or rest == "!"
        if not ended and (begun or any(start.startswith(rest) for start in ADDRESSES)):
            return None
        self._show(text[at])
        return 1

    def _show_link(self, text: str, target: str) -> None:
        """Emits the text of a link and its address, so that a link cannot hide its target."""
        style = self._style()
        self._emit(text or target, f"{style} link".strip())
        if text and target and text != target and not target.startswith("#"):
            self._emit(f" ({target})", "mark")
        self._before = ")"

    def _mark(self, mark: str, after: str) -> None:
        if "`" in mark and not mark.startswith("\\"):
            self._ticks(mark)
        elif self._code:
            self._show(mark)
        elif mark.startswith("\\"):
            self._show(mark[1:] or mark)
        elif mark.startswith("__") or (mark.startswith("~") and mark != STRIKE):  # __init__ is more common than bold
            self._show(mark)
        elif self._open and self._open[-1] == mark and not self._before.isspace():
            self._open.pop()
        elif not after.isspace() and not self._before.isalnum() and mark not in self._open:
            self._open.append(mark)
        elif mark == "***" and len(self._stars()) == 2:
            self._open = [one for one in self._open if one == STRIKE]
        else:
            self._show(mark)

    def _ticks(self, ticks: str) -> None:
        if not self._code:
            self._code = ticks
        elif self._code == ticks:
            self._code = ""
        else:
            self._show(ticks)

    def _show(self, text: str) -> None:
        if text:
            self._emit(text, "code" if self._code else self._style())
            self._before = text[-1]

    def _stars(self) -> list[str]:
        return [mark for mark in self._open if mark != STRIKE]

    def _style(self) -> str:
        """The style of the open marks."""
        stars = self._stars()
        size = max((len(mark) for mark in stars), default=0) if len(stars) < 2 else 3
        style = {0: self.base, 1: "italic", 2: "bold", 3: "bold italic"}[size]
        return f"{style} strike".strip() if STRIKE in self._open else style
