"""The body of a request: read within bounds of size and time, and parsed as JSON of bounded depth."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .errors import ApiError, shown

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Json = dict[str, Any]

MAX_DEPTH = 64  # of nested lists and objects
PATIENCE = 30.0  # seconds that a client has for the next piece of a body
OFF_LOOP = 1 << 16  # bytes; a larger body is parsed on a thread


class Disconnected(Exception):
    """The client went away."""


async def read_json(receive: Receive, headers: dict[bytes, bytes], most: int) -> tuple[Json, int]:
    """The JSON object of a body, and its bytes."""
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"identity", b""):
        raise ApiError(415, "compressed bodies are not taken; send the JSON as it is")
    body = await read(receive, headers, most)
    parsed = await asyncio.to_thread(parse, body) if len(body) > OFF_LOOP else parse(body)
    return parsed, len(body)


async def read(receive: Receive, headers: dict[bytes, bytes], most: int) -> bytes:
    """The bytes of a body; refused as soon as they are too many."""
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > most:
        raise too_large(most)
    pieces, size = [], 0
    while True:
        try:
            async with asyncio.timeout(PATIENCE):  # no wait_for: before Python 3.12 it makes a task of each piece
                message = await receive()
        except TimeoutError:
            raise ApiError(408, f"no more of the body came for {PATIENCE:g} seconds") from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        piece = message.get("body", b"")
        size += len(piece)
        if size > most:
            raise too_large(most)
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


def too_large(most: int) -> ApiError:
    """A body beyond the bound."""
    return ApiError(413, f"the body is larger than {most:,} bytes; send less, or raise --max-body")


def parse(body: bytes) -> Json:
    """JSON as RFC 8259 has it: UTF-8, with a byte order mark or without, no NaN, not too deep; an object."""
    if not body.strip():
        raise ApiError(400, "the body is empty; send a JSON object")
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_not_json)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:  # a number of too many digits
        raise ApiError(400, f"the body is not JSON that can be read: {error}") from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        check_depth(value)
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is {shown(value)}; it must be an object")
    return value


def check_depth(value: Any) -> None:
    """Refuses what nests too deep."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise too_deep()
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below.extend(one.values())
            elif isinstance(one, list):
                below.extend(one)
        level = below


def too_deep() -> ApiError:
    """A body that nests beyond the bound."""
    return ApiError(400, f"the body nests more than {MAX_DEPTH} deep")


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
