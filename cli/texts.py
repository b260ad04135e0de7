"""Texts from an argument, a file or standard input."""

import os
import sys
from pathlib import Path

from rwkv_gpu.errors import BadInput

from .printing import print_text


def input_text(text: str | None, path: str | None, name: str) -> str:
    """The text of an argument, which errors call `name`, or of a file; without either, standard input."""
    if text is not None and path is not None:
        raise BadInput(f"give the text by {name} or by --file, not both")
    return read_text(path or "-") if text is None else as_text(text.encode("utf-8", "surrogateescape"), name)


def read_text(path: str) -> str:
    """A file's text; - is standard input."""
    if path == "-":
        if sys.stdin is not None and sys.stdin.isatty():
            print_text("rwkv-gpu: reading text from the terminal; Ctrl-D on a line of its own ends it", err=True)
        return as_text(b"" if sys.stdin is None else sys.stdin.buffer.read(), "standard input")
    try:
        with open(path, "rb") as file:
            return as_text(file.read(), path)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Writes a file; creates missing folders."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None


def as_text(data: bytes, where: str) -> str:
    """Decodes bytes. Raises BadInput with the position of the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"the text from {where} is not UTF-8 at byte {error.start}; convert it first") from None


def lines_of(text: str) -> list[str]:
    """Splits a text at newlines only: str.splitlines would also split at characters inside JSON."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def template_text(template: str) -> str:
    """The name of a built-in chat template, or the text of a file."""
    return read_text(template) if os.path.isfile(template) else template
