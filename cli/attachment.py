"""The text of a file that goes with a message: text, source code, or a PDF."""

import os
from pathlib import Path
from typing import Any

from rwkv_gpu.errors import BadInput, MissingExtra, printable

from .texts import as_text

MOST_BYTES = 64 << 20
PDF = b"%PDF-"


def message_part(name: str, text: str) -> str:
    """A file as a part of a message: its name, then its text as a block of code that nothing in it can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{name}:\n{fence}\n{text.strip()}\n{fence}\n\n"


def file_text(path: Path) -> str:
    """The text of a file. BadInput if it has none, with the reason."""
    try:
        if not path.is_file():
            raise BadInput(f"{path} is {'a folder' if path.is_dir() else 'no file'}; give a text, source code or PDF")
        if (size := os.path.getsize(path)) > MOST_BYTES:
            raise BadInput(f"{path} has {size:,} bytes; a file of up to {MOST_BYTES:,} can go with a message")
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    if not data.startswith(PDF) and b"\0" in data:
        raise BadInput(f"{path} is no text; give a text, source code or PDF")
    text = _pdf_text(path) if data.startswith(PDF) else as_text(data, str(path)).removeprefix("\ufeff")
    if not text.strip():
        raise BadInput(f"{path} has no text{'; are its pages scanned?' if data.startswith(PDF) else ''}")
    return text


def _pdf_text(path: Path) -> str:
    """The text of all pages."""
    pypdf = _pypdf()
    damaged = (pypdf.errors.PyPdfError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
               AssertionError, NotImplementedError, RecursionError, OSError)  # fmt: skip
    try:
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise BadInput(f"{path} needs a password; save it without one first")
        return "\n\n".join(page.extract_text() for page in reader.pages)
    except pypdf.errors.DependencyError:
        raise BadInput(f"{path} is encrypted; save it without encryption first") from None
    except damaged as error:
        raise BadInput(f"{path}: cannot be read as PDF: {printable(str(error))}") from None


def _pypdf() -> Any:
    import logging

    try:
        import pypdf
        import pypdf.errors
    except ImportError:
        raise MissingExtra.of("PDF files need pypdf", "pdf") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it reports what it repairs
    return pypdf
