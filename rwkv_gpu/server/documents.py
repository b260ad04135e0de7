"""Reads the text of PDF files, for the chat page."""

from .call import Call, Response, Whole
from .endpoint import Endpoint
from .errors import ApiError
from .multipart import Upload
from .openai import FAMILY
from .routes import Route, post
from .service import Service


def routes(service: Service) -> list[Route]:
    """The routes for documents."""
    return [post("/v1/documents/text", Endpoint(service, FAMILY, text, takes_form=True))]


async def text(service: Service, call: Call) -> Response:
    """The text of each page of the PDF in the field `file` of a form."""
    file = call.body.get("file")
    if not isinstance(file, Upload):
        raise ApiError(400, "file is missing; send the PDF as the part `file` of a form", param="file")
    if service.draining:
        raise ApiError(503, "the server is shutting down", code="shutting_down")
    document = await service.pdfs.read(file.content, file.filename, "file")
    return Whole({"object": "document.text", "pages": document.pages, "total_pages": document.total})
