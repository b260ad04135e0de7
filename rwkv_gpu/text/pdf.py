"""The text of PDF files, page by page, by pypdf. As a program, reads one from standard input for `pdf_process`."""

import io
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from rwkv_gpu.errors import BadInput, MissingExtra, printable

BEGINNING = b"%PDF-"


@dataclass(frozen=True)
class Document:
    """The text of each page that was read, and the number of pages in the file."""

    pages: list[str]
    total: int


def pages_of(source: bytes, name: str, max_pages: int | None = None, max_text: int | None = None) -> Document:
    """The first pages of a file, up to these limits of pages and characters. Raises BadInput if it cannot be read."""
    pypdf = find_pypdf()
    damaged = (pypdf.errors.PyPdfError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
               AssertionError, NotImplementedError, RecursionError, OSError)  # fmt: skip
    try:
        reader = pypdf.PdfReader(io.BytesIO(source))
        if reader.is_encrypted and not reader.decrypt(""):
            raise BadInput(f"{name} needs a password; save it without one first")
        pages, left = list[str](), max_text
        for page in reader.pages[:max_pages]:
            pages.append(page.extract_text()[:left])
            if left is not None:
                left -= len(pages[-1])
                if not left:
                    break
        return Document(pages, len(reader.pages))
    except pypdf.errors.DependencyError:
        raise BadInput(f"{name} is encrypted; save it without encryption first") from None
    except damaged as error:
        raise BadInput(f"{name}: cannot be read as PDF: {printable(str(error))}") from None


def find_pypdf() -> Any:
    """Imports pypdf, and silences its warnings about repaired files."""
    import logging

    try:
        import pypdf
        import pypdf.errors
    except ImportError:
        raise MissingExtra.of("PDF files need pypdf", "pdf") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    return pypdf


def main(name: str, memory: int, max_pages: int, max_text: int) -> None:
    """Writes the document in standard input as JSON, or the reason why it cannot be read."""
    import signal

    from rwkv_gpu.text.grammar_worker import limit_memory

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started this one
    with os.fdopen(os.dup(1), "w", encoding="ascii") as target:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        limit_memory(memory)
        try:
            document = pages_of(sys.stdin.buffer.read(), name, max_pages, max_text)
            json.dump({"pages": document.pages, "total": document.total}, target)
        except BadInput as error:
            json.dump({"error": str(error)}, target)
