"""Texts as they are given to a command: as an argument, in a file, or on standard input."""

import sys

from rwkv_gpu.errors import BadInput


def given_text(text: str | None, path: str | None, name: str) -> str:
    """The text that was given in one of the ways; `name` is what the argument is called."""
    if text is not None and path is not None:
        raise BadInput(f"give the text by {name} or by --file, not both")
    if text is not None:
        return as_text(text.encode("utf-8", "surrogateescape"), name)
    return read_text(path) if path is not None else as_text(sys.stdin.buffer.read(), "standard input")


def read_text(path: str) -> str:
    """A file's text; - is standard input."""
    if path == "-":
        return as_text(sys.stdin.buffer.read(), "standard input")
    try:
        with open(path, "rb") as file:
            return as_text(file.read(), path)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None


def as_text(data: bytes, where: str) -> str:
    """Bytes as text. BadInput tells where they are none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"the text from {where} is not UTF-8 at byte {error.start}; convert it first") from None
