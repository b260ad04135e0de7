"""Reads the body of a request within limits of size and time, and parses it as JSON of limited depth."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .errors import ApiError, shown

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Json = dict[str, Any]

LIST = "list"  # name of a body that is a list
MAX_DEPTH = 64  # levels of nested lists and objects
PATIENCE = 30.0  # seconds that a client has for a small body
RATE = 16 << 10  # minimum bytes per second of a large body
OFF_LOOP = 1 << 16  # bytes; a larger body is parsed on a thread


class Disconnected(Exception):
    """The client has disconnected."""


async def read_json(
    receive: Receive, headers: dict[bytes, bytes], most: int, *, is_list: bool = False, may_be_empty: bool = False
) -> tuple[Json, int]:
    """Reads a JSON object; returns it and the size of the body.

    With `is_list`, reads a list, returned under the key LIST.
    """
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"identity", b""):
        raise ApiError(415, "compressed bodies are not accepted; send the JSON uncompressed")
    body = await read(receive, headers, most)
    if may_be_empty and not body.strip():
        return {}, len(body)
    kind: type = list if is_list else dict
    parsed = await asyncio.to_thread(parse, body, kind) if len(body) > OFF_LOOP else parse(body, kind)
    return parsed, len(body)


async def read(receive: Receive, headers: dict[bytes, bytes], most: int) -> bytes:
    """Reads the bytes of a body; refuses it as soon as it exceeds the limit."""
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > most:
        raise too_large(most)
    pieces, size = [], 0
    began = asyncio.get_running_loop().time()
    while True:
        try:
            # Not `wait_for`: before Python 3.12, it creates a task for each piece
            async with asyncio.timeout_at(began + patience(size)):
                message = await receive()
        except TimeoutError:
            why = f"the body took more than {patience(size):.3g} seconds; send it faster, or in one piece"
            raise ApiError(408, why) from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        piece = message.get("body", b"")
        size += len(piece)
        if size > most:
            raise too_large(most)
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


def patience(size: int) -> float:
    """Seconds within which a body of `size` bytes must arrive."""
    return PATIENCE + size / RATE


def too_large(most: int) -> ApiError:
    """The error for a body above the size limit."""
    return ApiError(413, f"the body is larger than {most:,} bytes; send less, or raise --max-body")


def parse(body: bytes, kind: type = dict) -> Json:
    """Parses a JSON object. A list is returned as an object with the key LIST.

    By RFC 8259: UTF-8, optional byte order mark, no NaN, limited depth.
    """
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
    except ValueError as error:  # a number with too many digits
        raise ApiError(400, f"the body is not JSON that can be read: {error}") from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        check_depth(value)
    if not isinstance(value, kind):
        raise ApiError(400, f"the body is {shown(value)}; it must be {'an object' if kind is dict else 'a list'}")
    return value if isinstance(value, dict) else {LIST: value}


def check_depth(value: Any) -> None:
    """Refuses a value that is nested too deep."""
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
    """The error for a body nested too deep."""
    return ApiError(400, f"the body nests more than {MAX_DEPTH} deep")


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
