"""Texts from an argument, a file or standard input."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from rwkv_gpu.errors import BadInput
from rwkv_gpu.replace_file import replace_bytes
from rwkv_gpu.text.builtin_templates import BUILT_IN
from rwkv_gpu.writer_lock import WriterLock

from .printing import print_text

MAX_BYTES = 1 << 30  # bytes of a text
MAX_SETTING = 64 << 20  # bytes of a template, a grammar or another file of settings


def input_text(text: str | None, path: str | None, name: str) -> str:
    """The text of an argument or of a file; without either, of standard input. Errors call the argument `name`."""
    if text is not None and path is not None:
        raise BadInput(f"give the text by {name} or by --file, not both")
    return read_text(path or "-") if text is None else as_text(text.encode("utf-8", "surrogateescape"), name)


def read_text(path: str, most: int = MAX_BYTES) -> str:
    """A file's text; - is standard input. Raises BadInput if a file has more than `most` bytes."""
    if path == "-":
        if sys.stdin is not None and sys.stdin.isatty():
            print_text("rwkv-gpu: reading text from the terminal; Ctrl-D on a line of its own ends it", err=True)
        return "" if sys.stdin is None else as_text(_read(sys.stdin.buffer, "standard input", most), "standard input")
    try:
        with open(path, "rb") as file:
            return as_text(_read(file, path, most, os.fstat(file.fileno()).st_size), path)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None


def _read(file: IO[bytes], where: str, most: int, size: int = 0) -> bytes:
    """The bytes of a regular file, or of a pipe or a device, whose size is unknown and may be endless."""
    data = bytearray()
    while max(size, len(data)) <= most and (part := file.read(1 << 20)):
        data += part
    if max(size, len(data)) > most:
        raise BadInput(f"{where} has more than {most:,} bytes, the most that are read; is it the right file?")
    return bytes(data)


def write_text(path: Path, text: str) -> None:
    """Writes a file, atomically unless it is a pipe or a device; creates missing folders."""
    if seekable(path):
        replace_bytes(path, text.encode(), private=False)
        return
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def growing(path: str) -> Iterator[IO[str]]:
    """Opens and locks a file for writing line by line. A pipe or a device is opened without a lock."""
    with ExitStack() as opened:
        try:
            if seekable(path):
                opened.enter_context(WriterLock(path))
            file = opened.enter_context(open(path, "w", encoding="utf-8", newline="\n"))
        except OSError as error:
            raise BadInput(f"{path}: cannot be written: {error.strerror}") from None
        yield file


def seekable(path: str | Path) -> bool:
    """True if a path is, or would be, a regular file, not a pipe or device."""
    return not os.path.exists(path) or stat.S_ISREG(os.stat(path).st_mode)


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
    """The name of a built-in chat template, a template itself, or the text of a file."""
    if os.path.isfile(template):
        return read_text(template, MAX_SETTING)
    if "{" not in template and template not in BUILT_IN:
        raise BadInput(f"{template} is not a file or a built-in chat template; known: {', '.join(BUILT_IN)}")
    return template
