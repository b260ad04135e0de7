"""The text of documents, for the page: PDF files, each read in a separate process."""

import asyncio

from rwkv_gpu.errors import MissingExtra, printable
from rwkv_gpu.text.pdf import BEGINNING, Document
from rwkv_gpu.text.pdf_process import Limits, PdfProcess

from .call import Call, Response, Whole
from .endpoint import Endpoint
from .errors import ApiError
from .multipart import Upload
from .openai import FAMILY
from .routes import Route, post
from .service import Service

PROCESSES = 2  # documents read at a time
MOST_WAITING = 16
LONGEST_NAME = 200  # characters


def routes(service: Service) -> list[Route]:
    """The routes for documents."""
    return [post("/v1/documents/text", Endpoint(service, FAMILY, Documents().text, takes_form=True))]


class Documents:
    """Reads documents, a few at a time."""

    def __init__(self) -> None:
        self._limits = Limits()
        self._free = asyncio.Semaphore(PROCESSES)
        self._waiting = 0

    async def text(self, service: Service, call: Call) -> Response:
        """The text of each page of the PDF in the field `file` of a form."""
        file = call.body.get("file")
        if not isinstance(file, Upload):
            raise ApiError(400, "file is missing; send the PDF as the part `file` of a form", param="file")
        name = printable(file.filename, LONGEST_NAME) or "the file"
        if BEGINNING not in file.content[:1024]:
            raise ApiError(400, f"{name} is no PDF", param="file")
        if service.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        if self._waiting >= MOST_WAITING:
            raise ApiError(429, "many documents are being read; try again", code="busy", retry_after=5)
        self._waiting += 1
        try:
            async with self._free:
                document = await self._read(name, file.content)
        finally:
            self._waiting -= 1
        if not any(page.strip() for page in document.pages):
            raise ApiError(400, f"{name} has no text; are its pages scanned?", param="file")
        return Whole({"object": "document.text", "pages": document.pages, "total_pages": document.total})

    async def _read(self, name: str, content: bytes) -> Document:
        process = PdfProcess(name, self._limits)
        try:
            return await asyncio.to_thread(process.read, content)
        except MissingExtra as error:
            raise ApiError(501, str(error), code="not_supported") from None
        finally:
            process.stop()
