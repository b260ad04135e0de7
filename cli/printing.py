"""Prints tables, facts and sentences: as wide as the terminal, or unchanged to a file or pipe."""

import itertools
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len

from .echo import echo_text
from .tables import LONGEST, Table, wrapped

NARROW = 60  # in terminals with fewer columns, labels are not aligned


def terminal_width(*, err: bool = False) -> int | None:
    """The columns of the terminal; None for a file or pipe."""
    stream = sys.stderr if err else sys.stdout
    return shutil.get_terminal_size().columns if stream is not None and stream.isatty() else None


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), notes: Sequence[str] = (),
    longest: int = LONGEST,
) -> None:  # fmt: skip
    """Prints rows below their headings, each followed by its note. Columns named in `right` are aligned to the right.

    Columns that are empty in all rows are left out. Words of up to `longest` cells are never split.
    """
    width, table = terminal_width(), Table.of_texts(heads, rows, right, notes, longest)
    drawn = table.plain() if width is None else "".join(piece for piece, _ in table.drawn(width))
    echo_text("\n".join(line.rstrip() for line in drawn.split("\n")), nl=False)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Prints a line for each label and value; on a terminal, long values are wrapped."""
    pairs, width = list(facts), terminal_width()
    size = max((cell_len(label) for label, _ in pairs), default=0)
    for label, value in pairs:
        narrow = width is not None and width < NARROW
        start = f"{label}: " if narrow else label + " " * (size + 2 - cell_len(label))
        echo_text("\n".join(folded(start + value, width, 2 if narrow else size + 2)))


def print_text(text: str, *, err: bool = False) -> None:
    """Prints a text. On a terminal its tables are drawn, and long lines break between words."""
    width = terminal_width(err=err)
    echo_text(text if width is None else rendered(text, width), err=err)


def rendered(text: str, width: int) -> str:
    """A text with its tables drawn and its lines folded, without styles."""
    lines: list[str] = []
    for is_table, group in itertools.groupby(text.split("\n"), lambda line: line.startswith("|")):
        if is_table:
            drawn = "".join(piece for piece, _ in Table.of_markdown(list(group), sparse=False).drawn(width))
            lines += [line.rstrip() for line in drawn.split("\n")[:-1]]
        else:
            lines += [part for line in group for part in folded(line, width)]
    return "\n".join(lines)


def folded(line: str, width: int | None, hang: int | None = None) -> Iterator[str]:
    """The line in parts that fit the width. All except the first begin with `hang` spaces: by default, as many as the
    line.

    A longer word, such as a path, stays whole: the terminal breaks it, and it can be copied.
    """
    if width is None or cell_len(line) <= width:
        yield line
        return
    hang = min(len(line) - len(line.lstrip(" ")) if hang is None else hang, width // 2)
    start = line[:hang]
    for part in wrapped([(line[hang:], "")], width - hang, split=False):
        yield start + "".join(text for text, _ in part).rstrip()
        start = " " * hang
