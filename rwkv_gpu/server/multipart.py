"""Parses forms (multipart/form-data, RFC 7578) within limits: exact boundaries, small heads, unique names."""

import re
from dataclasses import dataclass

from .errors import ApiError

MAX_PARTS = 32
LONGEST_HEAD = 2048  # bytes of a part's header lines
LONGEST_FIELD = 4096  # bytes of a field that is not a file
BOUNDARY = re.compile(r'multipart/form-data *; *boundary=(?:"([ -!#-~]{1,70})"|([^\s";]{1,70}))', re.IGNORECASE)
PARAMETER = re.compile(r'; *([a-z*]+)=("(?:[^"\\]|\\.)*"|[^\s;"]+)', re.IGNORECASE)


@dataclass(frozen=True)
class Upload:
    """A file of a form."""

    filename: str
    content: bytes


def parse_form(body: bytes, content_type: bytes) -> dict[str, str | Upload]:
    """The fields of a form by name."""
    found = BOUNDARY.fullmatch(content_type.decode("latin-1").strip())
    if found is None:
        raise ApiError(415, "send the file as multipart/form-data with a boundary of at most 70 characters")
    mark = b"\r\n--" + (found[1] or found[2]).encode("latin-1")
    text, fields = b"\r\n" + body, dict[str, str | Upload]()
    if not text.startswith(mark):
        raise ApiError(400, "the form does not begin with its boundary")
    at = len(mark)
    while text[at : at + 2] == b"\r\n":
        end = text.find(mark, at)
        if end < 0:
            raise ApiError(400, "the form is incomplete: its last boundary is missing")
        name, value = _part(text, at, end)
        if name in fields:
            raise ApiError(400, f"the form has several parts named {name[:80]!r}; send one", param=name[:80])
        if len(fields) == MAX_PARTS:
            raise ApiError(400, f"the form has more than {MAX_PARTS} parts")
        fields[name] = value
        at = end + len(mark)
    if text[at:] not in (b"--", b"--\r\n"):
        raise ApiError(400, "the form does not end with its boundary and two hyphens")
    return fields


def _part(text: bytes, start: int, end: int) -> tuple[str, str | Upload]:
    """The name and the value of the part between two boundaries. `start` is at the end of the boundary's line."""
    over = text.find(b"\r\n\r\n", start, min(end, start + LONGEST_HEAD))
    if over < 0:
        raise ApiError(400, f"the head of a part of the form is longer than {LONGEST_HEAD:,} bytes, or has no end")
    name, filename = _names(text[start + 2 : over])
    if filename is not None:
        return name, Upload(filename, text[over + 4 : end])
    if end - over - 4 > LONGEST_FIELD:
        raise ApiError(400, f"{name[:80]} is longer than {LONGEST_FIELD:,} bytes; send it with a filename")
    try:
        return name, text[over + 4 : end].decode()
    except UnicodeDecodeError:
        raise ApiError(400, f"{name[:80]!r} of the form is not UTF-8") from None


def _names(head: bytes) -> tuple[str, str | None]:
    """The names of the field and of the file, from the header lines of a part."""
    for line in head.decode("utf-8", "replace").split("\r\n"):
        key, _, value = line.partition(":")
        kind, given = value.strip().partition(";")[0], PARAMETER.findall(value)
        if key.strip().lower() == "content-disposition" and kind.strip().lower() == "form-data":
            names = {name.lower(): re.sub(r"\\(.)", r"\1", text.strip('"')) for name, text in given}
            if names.get("name"):
                return names["name"], names.get("filename")
    raise ApiError(400, "a part of the form has no line 'Content-Disposition: form-data; name=\"...\"'")
