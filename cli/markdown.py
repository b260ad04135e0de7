"""Renders markdown while it is generated. Text is styled as it arrives, and printed text never changes."""

import re
from collections.abc import Callable
from itertools import groupby

from .highlight import Highlighter
from .inline import Inline
from .tables import table
from .wrap import Wrap

# Kinds that a line may still become. Its text is withheld until a character decides.
UNDECIDED = re.compile(r"\s*(#{0,6} *|[-*_+ ]*|\d{0,3}([.)] *)?|>?|`{0,3}|~{0,3})")
FENCE = re.compile(r"\s*(```|~~~)")
HEADING = re.compile(r"\s{0,3}(#{1,6}) +")
ITEM = re.compile(r"(\s*)([-*+]|\d{1,3}[.)]) +(?=\S)")
QUOTE = re.compile(r"\s{0,3}> ?")
RULE = re.compile(r"\s{0,3}([-*_])(\s*\1){2,}\s*")


class Markdown:
    """Takes text by `feed`, and writes through `write(text, style)`. Styles are names in `screen.STYLES`."""

    def __init__(self, write: Callable[[str, str], None], width: Callable[[], int]) -> None:
        self._width = width
        self._wrap = Wrap(write, width)
        self._inline = Inline(self._wrap.feed)
        self._line: str | None = ""  # beginning of a line whose kind is undecided; None inside a line
        self._fence = ""  # the mark that opened a block of code
        self._code: Highlighter | None = None  # the highlighter of that block, if it names its language
        self._rows: list[str] = []  # rows of a table

    def feed(self, text: str) -> None:
        """Adds text of the answer."""
        for is_end, group in groupby(text, lambda char: char == "\n"):
            for part in group if is_end else ["".join(group)]:
                self._end_line() if is_end else self._feed_line(part)

    def flush(self) -> None:
        """Ends the answer, complete or not."""
        if self._line and not self._line.startswith("|"):
            self._begin(self._line)
        if self._line:
            self._rows.append(self._line)
        self._line = None
        self._end_table()
        self._inline.end()
        self._wrap.flush()

    @property
    def column(self) -> int:
        """The column of the next character."""
        return self._wrap.column

    def _feed_line(self, text: str) -> None:
        if self._line is None:
            self._wrap.verbatim(text, "code") if self._fence else self._inline.feed(text)
            return
        self._line += text
        if self._fence:
            if self._code is None and not _may_become(self._line, self._fence):
                self._wrap.verbatim(self._line, "code")
                self._line = None
        elif self._line.startswith("|"):
            return
        elif not UNDECIDED.fullmatch(self._line) and not FENCE.match(self._line):
            self._begin(self._line)

    def _begin(self, line: str) -> None:
        """Writes the mark of a line once its kind is known, and then its text."""
        self._end_table()
        self._line = None
        if self._fence:
            self._show_code(line)
        elif heading := HEADING.match(line):
            self._inline.base = "heading"
            self._inline.feed(line[heading.end() :])
        elif item := ITEM.match(line):
            mark = item[1] + ("•" if item[2] in "-*+" else item[2]) + " "
            self._wrap.verbatim(mark, "mark")
            self._wrap.hang = " " * len(mark)
            self._inline.feed(line[item.end() :])
        elif quote := QUOTE.match(line):
            self._wrap.verbatim("│ ", "mark")
            self._wrap.hang = "│ "
            self._inline.base = "quote"
            self._inline.feed(line[quote.end() :])
        else:
            self._inline.feed(line)

    def _end_line(self) -> None:
        line, self._line = self._line, ""
        if self._fence:
            self._end_code_line(line)
        elif line is not None and line.startswith("|"):
            self._rows.append(line)
        elif line is not None and (fence := FENCE.match(line)):
            self._end_table()
            self._fence, language = fence[1], line[fence.end() :].strip()
            self._code = Highlighter.of(language.split()[0].strip("{.}") if language else "")
            self._wrap.verbatim(line + "\n", "mark")
        elif line and RULE.fullmatch(line):
            self._end_table()
            self._wrap.verbatim("─" * min(self._width(), 40) + "\n", "mark")
        else:
            if line is not None:
                self._begin(line)
                self._line = ""
            self._inline.end()
            self._wrap.end_line()

    def _end_code_line(self, line: str | None) -> None:
        if line is not None and line.strip() == self._fence:
            self._fence, self._code = "", None
            self._wrap.verbatim(line + "\n", "mark")
        else:
            self._show_code(line or "")
            self._wrap.verbatim("\n", "code")

    def _show_code(self, line: str) -> None:
        """Writes a line of code, highlighted if its language is known."""
        for text, style in [(line, "code")] if self._code is None else self._code.line(line):
            self._wrap.verbatim(text, style)

    def _end_table(self) -> None:
        rows, self._rows = self._rows, []
        for text, style in table(rows, self._width()):
            self._wrap.verbatim(text, style)


def _may_become(line: str, fence: str) -> bool:
    """True if a line of code may still become the closing fence."""
    line = line.lstrip(" ")
    return fence.startswith(line.rstrip(" "))
