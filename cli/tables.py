"""Lays out tables for a terminal: with aligned columns, or as lines `name: value` if the columns do not fit."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

from .inline import Inline
from .wrap import Piece

Cell = list[Piece]
LONGEST = 16  # cells of the longest word that a column never splits
NOTE = " " * 8  # indent of a note
GAPS = (" │ ", "  ")  # gaps between columns: the second if the first takes too much space
RULE = re.compile(r":?-+:?")
WORDS = re.compile(r"\S*\s*")  # words with the space after them


@dataclass(frozen=True)
class Table:
    """Rows of cells below optional headings. `sides` has the share of each column's padding that precedes its text.

    A note belongs to a row, and follows it on separate lines. Words of up to `longest` cells are never split.
    """

    heads: list[Cell]
    rows: list[list[Cell]]
    sides: list[float]
    notes: Sequence[str] = ()
    longest: int = LONGEST

    @classmethod
    def of_texts(
        cls, heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), notes: Sequence[str] = (),
        longest: int = LONGEST,
    ) -> "Table":  # fmt: skip
        """A table of plain texts, without columns that are empty in all rows; columns in `right` are right-aligned."""
        used = [i for i in range(len(heads)) if any(row[i] for row in rows)]
        cells = [[[(row[i], "")] for i in used] for row in rows]
        sides = [1.0 if heads[i] in right else 0.0 for i in used]
        return cls([[(heads[i], "")] for i in used], cells, sides, notes, longest)

    @classmethod
    def of_markdown(cls, lines: Sequence[str], *, sparse: bool = True) -> "Table":
        """A table in markdown. Unless `sparse`, columns that are empty in all rows are left out."""
        rows = [[text.strip() for text in line.strip().strip("|").split("|")] for line in lines]
        rules = rows[1] if len(rows) > 1 and all(map(RULE.fullmatch, rows[1])) else []
        heads, body = (rows[0], rows[2:]) if rules else ([], rows)
        count = max((len(row) for row in rows), default=0)
        used = [i for i in range(count) if sparse or any(row[i : i + 1] not in ([], [""]) for row in body)]
        cells = [[_cell(row[i] if i < len(row) else "") for i in used] for row in body]
        shown = [_cell(heads[i] if i < len(heads) else "") for i in used] if rules else []
        return cls(shown, cells, [side_of(rules[i]) if i < len(rules) else 0.0 for i in used])

    def drawn(self, width: int) -> Iterator[Piece]:
        """The pieces of the table, at most `width` cells wide."""
        whole = [self.heads, *self.rows] if self.heads else self.rows
        columns = [max((_size(row[i]) for row in whole), default=1) for i in range(len(self.sides))]
        least = [self._least(i) for i in range(len(columns))]
        for gap in GAPS:
            sizes = fitted(columns, least, width - len(gap) * (len(columns) - 1))
            if sizes is not None:
                yield from self._lines(sizes, gap, width)
                return
        yield from self._records(width)

    def plain(self) -> str:
        """The table for a file or pipe: a line per row, with aligned columns."""
        rows = [[_plain(cell) for cell in row] for row in ([self.heads] if self.heads else []) + self.rows]
        sizes = [max((cell_len(row[i]) for row in rows), default=0) for i in range(len(self.sides))]
        lines = []
        notes = iter(self.notes)
        for number, row in enumerate(rows):
            spaces = [" " * (size - cell_len(text)) for text, size in zip(row, sizes, strict=True)]
            parts = zip(row, spaces, self.sides, strict=True)
            lines.append("  ".join(space + text if side == 1.0 else text + space for text, space, side in parts))
            if number or not self.heads:
                lines += [NOTE + note for note in itertools.islice(notes, 1)]
        return "".join(line.rstrip() + "\n" for line in lines)

    def _least(self, column: int) -> int:
        """The minimum width of a column: numbers and words are not split."""
        cells = [row[column] for row in self.rows]
        words = [cell_len(word) for cell in [*cells, *self.heads[column : column + 1]] for word in _plain(cell).split()]
        numbers = map(_size, cells) if self.sides[column] == 1.0 else ()
        return max(1, min(self.longest, max([*words, *numbers], default=1)))

    def _lines(self, sizes: Sequence[int], gap: str, width: int) -> Iterator[Piece]:
        notes = iter(self.notes)
        for at, row in enumerate([self.heads, *self.rows] if self.heads else self.rows):
            heading = bool(self.heads) and not at
            cells = [wrapped(cell, size) for cell, size in zip(row, sizes, strict=True)]
            for line in range(max(map(len, cells))):
                parts = [cell[line] if line < len(cell) else [] for cell in cells]
                yield from _row(parts, sizes, self.sides, gap, heading=heading)
                yield "\n", ""
            if heading:
                joint = gap.replace(" ", "─").replace("│", "┼") if "│" in gap else gap
                yield joint.join("─" * size for size in sizes) + "\n", "mark"
            else:
                for note in itertools.islice(notes, 1):
                    yield from _indented([(note, "")], width, NOTE)

    def _records(self, width: int) -> Iterator[Piece]:
        """Each row as lines, `name: value`, with an empty line between two rows."""
        for number, row in enumerate(self.rows):
            if number:
                yield "\n", ""
            for i, cell in enumerate(row):
                if not _plain(cell):
                    continue
                name = [(_plain(self.heads[i]), "bold"), (": ", "")] if self.heads and _plain(self.heads[i]) else []
                yield from _indented([*name, *cell], width, "  ", first="")
            for note in self.notes[number : number + 1]:
                yield from _indented([(note, "")], width, "  ", first="")


def _indented(cell: Cell, width: int, indent: str, *, first: str | None = None) -> Iterator[Piece]:
    """The lines of a cell, indented; the first line may have a different indent."""
    for at, line in enumerate(wrapped(cell, width - len(indent), split=False)):
        yield (first if first is not None and at == 0 else indent), ""
        yield from line
        yield "\n", ""


def table(lines: Sequence[str], width: int) -> Iterator[Piece]:
    """The pieces of a table in markdown."""
    if lines:
        yield from Table.of_markdown(lines).drawn(width)


def fitted(columns: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Column widths for the room: narrow columns keep their width, wide ones share the rest; each has its minimum.

    None if there is no room.
    """
    sizes = [min(pair) for pair in zip(columns, least, strict=True)]
    room -= sum(sizes)
    if room < 0:
        return None
    wanted = [column - size for column, size in zip(columns, sizes, strict=True)]
    for left, i in zip(range(len(columns), 0, -1), sorted(range(len(columns)), key=wanted.__getitem__), strict=True):
        more = min(wanted[i], room // left)
        sizes[i] += more
        room -= more
    return sizes


def wrapped(cell: Cell, width: int, *, split: bool = True) -> list[Cell]:
    """The lines of a cell. Words that fit are not split. Longer ones are split, or get their own line."""
    width = max(2, width)  # a character may be two cells wide
    lines: list[Cell] = [[]]
    used = 0
    for word in _words(cell):
        size = cell_len(_plain(word).rstrip())
        if used and used + size > width:
            lines.append([])
            used = 0
        for text, style in word:
            rest = text
            while split and used + cell_len(rest.rstrip()) > width:
                part = chop_cells(rest, width - used)[0] if width - used > 1 else ""
                lines[-1].append((part, style))
                lines.append([])
                used, rest = 0, rest[len(part) :]
            last = rest if used + cell_len(rest) <= width else rest.rstrip()
            lines[-1].append((last, style))
            used += cell_len(last)
    return lines


def _words(cell: Cell) -> Iterator[Cell]:
    """The words with the space after them. A word can have parts of different styles."""
    word: Cell = []
    for text, style in cell:
        for part in filter(None, WORDS.findall(text)):
            word.append((part, style))
            if part[-1].isspace():
                yield word
                word = []
    if word:
        yield word


def _row(
    row: Sequence[Cell], columns: Sequence[int], sides: Sequence[float], gap: str, *, heading: bool
) -> Iterator[Piece]:
    for i, (cell, size, side) in enumerate(zip(row, columns, sides, strict=True)):
        if i:
            yield gap, "mark"
        space = size - _size(cell)
        before = int(side * space)
        yield " " * before, ""
        yield from ((text, "bold" if heading else style) for text, style in cell)
        yield " " * (space - before), ""


def side_of(rule: str) -> float:
    """The share of padding before the text, by the column's cell in the rule: --- is 0, --: is 1, :-: is half."""
    return 0.0 if not rule.endswith(":") else 0.5 if rule.startswith(":") else 1.0


def _cell(text: str) -> Cell:
    pieces: Cell = []
    inline = Inline(lambda text, style: pieces.append((text, style)))
    inline.feed(text)
    inline.end()
    return pieces


def _plain(cell: Cell) -> str:
    return "".join(text for text, _ in cell)


def _size(cell: Cell) -> int:
    return cell_len(_plain(cell))
