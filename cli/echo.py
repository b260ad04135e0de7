"""Prints text from models, files and servers without control characters."""

import sys

import click

# Control characters: text of models and files must not move the cursor or change the title of a terminal.
CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def echo_text(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Prints external text: unchanged to a file or pipe, without control characters to a terminal."""
    stream = sys.stderr if err else sys.stdout
    click.echo(text.translate(CONTROLS) if stream is not None and stream.isatty() else text, nl=nl, err=err)
