"""Prints text from models, files and servers without control characters."""

import sys

import click

# Control characters, and those that reorder the text of a line: text of models and files must not move the cursor,
# change the title of a terminal, or look like other text.
REMOVED = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
CONTROLS = {code: None for code in REMOVED if chr(code) not in "\n\t"}


def echo_text(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Prints external text: unchanged to a file or pipe, without control characters to a terminal."""
    stream = sys.stderr if err else sys.stdout
    click.echo(text.translate(CONTROLS) if stream is not None and stream.isatty() else text, nl=nl, err=err)
