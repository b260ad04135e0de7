"""Numbers of bytes and parameters, and tables, as text."""

from collections.abc import Sequence


def sized(nbytes: float) -> str:
    """Formats bytes, such as 1.5 MiB."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def aligned(rows: Sequence[Sequence[str]], left: int = 0) -> str:
    """Formats a Markdown table, whose first row has the headings. The first `left` columns are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        padded = (cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(cells))
        return f"| {' | '.join(padded)} |"

    return "\n".join(map(line, (rows[0], rule, *rows[1:])))


def counted(parameters: int) -> str:
    """Formats a number of parameters, such as 2.95 B or 83.6 M."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.2f} B"
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e6 else f"{parameters:,}"
