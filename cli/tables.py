"""A markdown table with its columns in line."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from .inline import Inline
from .wrap import Piece

Cell = list[Piece]


def table(lines: Sequence[str], width: int) -> Iterator[Piece]:
    """The pieces of a table; of one that is wider than `width`, its lines as they are."""
    rows = [[_cell(text) for text in line.strip().strip("|").split("|")] for line in lines]
    rules = [all(set(_plain(cell)) <= set("-: ") for cell in row) for row in rows]
    count = max((len(row) for row in rows), default=0)
    columns = [
        max(
            (_size(row[i]) for row, rule in zip(rows, rules, strict=True) if not rule and i < len(row)),
            default=1,
        )
        for i in range(count)
    ]
    if sum(columns) + 3 * len(columns) > width:
        yield from ((line + "\n", "") for line in lines)
        return
    for at, (row, rule) in enumerate(zip(rows, rules, strict=True)):
        if rule:
            yield "─┼─".join("─" * size for size in columns) + "\n", "mark"
            continue
        yield from _row(row, columns, heading=at + 1 < len(rules) and rules[at + 1])
        yield "\n", ""


def _row(row: Sequence[Cell], columns: Sequence[int], *, heading: bool) -> Iterator[Piece]:
    for i, size in enumerate(columns):
        if i:
            yield " │ ", "mark"
        cell = row[i] if i < len(row) else []
        yield from ((text, "bold" if heading else style) for text, style in cell)
        yield " " * (size - _size(cell)), ""


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
