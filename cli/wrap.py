"""Wraps text that arrives in pieces: breaks lines between words at the terminal's width. Printed text never changes."""

from collections.abc import Callable, Iterator

from rich.cells import cell_len

Piece = tuple[str, str]  # a text, and the name of its style
JOINER = "\u200d"  # joins the next character to the previous one


class Wrap:
    """Writes text word by word. A word is written when it is complete, because only then its width is known.

    `hang` is printed at the start of every line of a paragraph except the first. The caller sets it; it is cleared at a
    line's end.
    """

    def __init__(self, write: Callable[[str, str], None], width: Callable[[], int]) -> None:
        self._write = write
        self._width = width
        self._word: list[Piece] = []
        self._gap = ""  # spaces before the word
        self._goes_on = False  # a part of the word has been written
        self.column = 0
        self.hang = ""

    def feed(self, text: str, style: str = "") -> None:
        """Adds text of one style."""
        for part in _parts(text):
            if part == "\n":
                self.end_line()
            elif part == " ":
                self._place()
                self._gap += part
            else:
                # A line may end before and after a wide character.
                if not self._joins(part) and (_is_wide(part) or (self._word and _is_wide(self._word[0][0]))):
                    self._place()
                self._add(part, style)

    def verbatim(self, text: str, style: str = "") -> None:
        """Writes text whose lines are kept, such as code."""
        self._place()
        self._write(self._gap, "")
        self._gap = ""
        self._write(text, style)
        _, ended, last = text.rpartition("\n")
        self.column = cell_len(last) + (0 if ended else self.column)

    def end_line(self) -> None:
        """Ends the line at its current width."""
        self._place()
        self._gap, self.hang, self.column = "", "", 0
        self._write("\n", "")

    def flush(self) -> None:
        """Writes the incomplete word."""
        self._place()

    def _add(self, part: str, style: str) -> None:
        """Adds to the word; once it exceeds a line, it is written, and the terminal breaks it."""
        while (room := self._width() - self._size()) <= cell_len(part):
            self._word.append((part[:room], style))
            self._place()
            self._goes_on = True
            part = part[room:]
        if part:
            self._word.append((part, style))

    def _size(self) -> int:
        return cell_len("".join(text for text, _ in self._word))

    def _joins(self, text: str) -> bool:
        """True if a character combines with the one before it: an accent, a skin tone, a part of a family emoji."""
        if not self._word:
            return False
        return cell_len(text) == 0 or "\U0001f3fb" <= text <= "\U0001f3ff" or self._word[-1][0].endswith(JOINER)

    def _place(self) -> None:
        """Moves the word to the next line if it does not fit."""
        if not self._word:
            return
        size, width = self._size(), self._width()
        fits = self.column + len(self._gap) + size <= width
        if not fits and not self._goes_on and self.column > cell_len(self.hang):
            self._write("\n" + self.hang, "mark")
            self.column = cell_len(self.hang)
        else:
            self._write(self._gap, "")
            self.column += len(self._gap)
        for text, style in self._word:
            self._write(text, style)
        self.column += size
        if self.column > width:  # the word is longer than a line, and the terminal has broken it
            self.column = self.column % width or width
        self._word, self._gap, self._goes_on = [], "", False


def _parts(text: str) -> Iterator[str]:
    """Splits text into line ends, spaces, single wide and joining characters, and runs of the rest."""
    run = ""
    for char in text:
        if char in "\n " or cell_len(char) != 1:
            if run:
                yield run
            run = ""
            yield char
        else:
            run += char
    if run:
        yield run


def _is_wide(text: str) -> bool:
    return len(text) == 1 and cell_len(text) == 2
