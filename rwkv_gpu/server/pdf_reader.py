"""Reads PDF files, a few at a time, each in a separate process; and puts their text into messages."""

import asyncio
from collections.abc import Mapping
from typing import Any

from rwkv_gpu.errors import BadInput, MissingExtra, printable
from rwkv_gpu.llm.images import base64_of
from rwkv_gpu.text.pdf import BEGINNING, Document
from rwkv_gpu.text.pdf_process import Limits, PdfProcess

from .call import Json
from .errors import ApiError

PROCESSES = 2  # documents read at a time
MAX_WAITING = 16
MAX_FILES = 16  # of one request
LONGEST_NAME = 200  # characters


def file_part(data: Any, name: Any = None) -> Json:
    """A file in a message, in OpenAI's form. `data` is a data URL or base64."""
    return {"type": "file", "file": {"file_data": data, "filename": name}}


class PdfReader:
    """Reads PDF files, a few at a time."""

    def __init__(self) -> None:
        self._limits = Limits()
        self._free = asyncio.Semaphore(PROCESSES)
        self._waiting = 0

    async def read(self, content: bytes, name: object, param: str) -> Document:
        """The text of each page. The field `param` holds the file."""
        known = printable(name, LONGEST_NAME) if isinstance(name, str) else ""
        name = known or "the file"
        if BEGINNING not in content[:1024]:
            raise ApiError(400, f"{name} is not a PDF", param=param)
        if self._waiting >= MAX_WAITING:
            raise ApiError(429, "many documents are being read; try again", code="busy", retry_after=5)
        self._waiting += 1
        process = PdfProcess(name, self._limits)
        try:
            async with self._free:
                document = await asyncio.to_thread(process.read, content)
        except MissingExtra as error:
            raise ApiError(501, str(error), code="not_supported") from None
        except BadInput as error:
            raise ApiError(400, str(error), param=param) from None
        finally:
            process.stop()
            self._waiting -= 1
        if not any(page.strip() for page in document.pages):
            raise ApiError(400, f"{name} has no text; are its pages scanned?", param=param)
        return document

    async def filled(self, messages: Any) -> Any:
        """The messages with the text of PDF files in place of the files."""
        found = [
            (i, n, part)
            for i, message in enumerate(messages if isinstance(messages, list) else ())
            if isinstance(message, Mapping) and isinstance(message.get("content"), list)
            for n, part in enumerate(message["content"])
            if isinstance(part, Mapping) and part.get("type") == "file"
        ]
        if len(found) > MAX_FILES:
            raise ApiError(400, f"there are more than {MAX_FILES} files; send fewer", param="messages")
        parts = {i: [*messages[i]["content"]] for i, *_ in found}
        for i, n, part in found:
            parts[i][n] = {"type": "text", "text": await self._text(part.get("file"), f"messages[{i}].content[{n}]")}
        return (
            [{**message, "content": parts[i]} if i in parts else message for i, message in enumerate(messages)]
            if parts
            else messages
        )

    async def _text(self, file: Any, where: str) -> str:
        data = file.get("file_data") if isinstance(file, Mapping) else None
        if not isinstance(data, str):
            raise ApiError(400, f"{where} is a file without file_data; send a PDF in base64", param="messages")
        document = await self.read(base64_of(data, where), file.get("filename"), "messages")
        return "\n\n".join(document.pages).strip() + "\n"
