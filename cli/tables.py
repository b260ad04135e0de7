"""Renders a markdown table with aligned columns, at most as wide as the terminal."""

import itertools
import re
import shutil
import sys
from collections.abc import Iterator, Sequence

import click
from rich.cells import cell_len, chop_cells

from .inline import Inline
from .wrap import Piece

Cell = list[Piece]
NARROWEST = 4  # minimum readable width of a column, in cells
RULE = re.compile(r":?-+:?")
WORDS = re.compile(r"\S*\s*")  # including the space after them


def table(lines: Sequence[str], width: int) -> Iterator[Piece]:
    """The pieces of a table.

    If it is wider than `width`, its cells wrap; if even that does not fit, its source lines.
    """
    rows = [[_cell(text) for text in line.strip().strip("|").split("|")] for line in lines]
    rules = [all(RULE.fullmatch(_plain(cell)) for cell in row) for row in rows]
    columns = fitted(_columns([row for row, rule in zip(rows, rules, strict=True) if not rule]), width)
    if columns is None:
        yield from ((line + "\n", "") for line in lines)
        return
    rule_cells = next(([_plain(cell) for cell in row] for row, rule in zip(rows, rules, strict=True) if rule), [])
    sides = [side_of(rule_cells[i] if i < len(rule_cells) else "") for i in range(len(columns))]
    for at, (row, rule) in enumerate(zip(rows, rules, strict=True)):
        if rule:
            yield "─┼─".join("─" * size for size in columns) + "\n", "mark"
            continue
        cells = [wrapped(row[i] if i < len(row) else [], size) for i, size in enumerate(columns)]
        for line in range(max(map(len, cells))):
            parts = [cell[line] if line < len(cell) else [] for cell in cells]
            yield from _row(parts, columns, sides, heading=at + 1 < len(rules) and rules[at + 1])
            yield "\n", ""


def _columns(rows: Sequence[Sequence[Cell]]) -> list[int]:
    """The width of each column: that of its widest cell."""
    count = max(map(len, rows), default=0)
    return [max((_size(row[i]) for row in rows if i < len(row)), default=1) for i in range(count)]


def fitted(columns: Sequence[int], width: int) -> list[int] | None:
    """Column widths that fit `width`: narrow columns keep theirs, wide ones share the rest.

    None if there is no room.
    """
    room = width - 3 * (len(columns) - 1)
    if sum(columns) <= room:
        return list(columns)
    if room < NARROWEST * len(columns):
        return None
    sizes = list(columns)
    for left, i in zip(range(len(columns), 0, -1), sorted(range(len(columns)), key=columns.__getitem__), strict=True):
        sizes[i] = min(columns[i], room // left)
        room -= sizes[i]
    return sizes


def wrapped(cell: Cell, width: int) -> list[Cell]:
    """The lines of a cell: words that fit stay whole, longer ones are split."""
    lines: list[Cell] = [[]]
    used = 0
    for text, style in cell:
        for word in WORDS.findall(text):
            size = cell_len(word.rstrip())
            if used and used + size > width:
                lines.append([])
                used = 0
            parts = chop_cells(word, width) if size > width else [word]
            for part in parts[:-1]:
                lines[-1].append((part, style))
                lines.append([])
            last = parts[-1] if used + cell_len(parts[-1]) <= width else parts[-1].rstrip()
            lines[-1].append((last, style))
            used += cell_len(last)
    return lines


def _row(row: Sequence[Cell], columns: Sequence[int], sides: Sequence[float], *, heading: bool) -> Iterator[Piece]:
    for i, (cell, size, side) in enumerate(zip(row, columns, sides, strict=True)):
        if i:
            yield " │ ", "mark"
        space = size - _size(cell)
        before = int(side * space)
        yield " " * before, ""
        yield from ((text, "bold" if heading else style) for text, style in cell)
        yield " " * (space - before), ""


def side_of(rule: str) -> float:
    """The share of a column's padding before the text, by its cell in the rule: --- is 0, --: is 1, :-: is half."""
    return 0.0 if not rule.endswith(":") else 0.5 if rule.startswith(":") else 1.0


def rendered(text: str, width: int) -> str:
    """A text with its tables drawn for a terminal, without styles."""
    lines: list[str] = []
    for is_table, group in itertools.groupby(text.split("\n"), lambda line: line.startswith("|")):
        drawn = "".join(piece for piece, _ in table(list(group), width)) if is_table else "\n".join(group) + "\n"
        lines.append(drawn)
    return "".join(lines).removesuffix("\n")


def _cell(text: str) -> Cell:
    pieces: Cell = []
    inline = Inline(lambda text, style: pieces.append((text, style)))
    inline.feed(text.strip())
    inline.end()
    return pieces


def _plain(cell: Cell) -> str:
    return "".join(text for text, _ in cell)


def _size(cell: Cell) -> int:
    return cell_len(_plain(cell))


def print_text(text: str) -> None:
    """Prints a text: unchanged to a file or pipe, with drawn tables on a terminal."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    click.echo(rendered(text, shutil.get_terminal_size().columns) if terminal else text)
