"""One HTTP request and its response: what a handler receives and returns, and how that is sent."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from .errors import ApiError

Json = dict[str, Any]
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
JSON_TYPE = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"


@dataclass(eq=False)
class Call:
    """A request: its parsed body, and data for its log line."""

    scope: Scope
    id: str
    headers: dict[bytes, bytes]
    began: float = field(default_factory=time.monotonic)
    body: Json = field(default_factory=dict)
    body_bytes: int = 0
    notes: Json = field(default_factory=dict)  # fields of the log line: model, tokens, ...
    ignored: list[str] = field(default_factory=list)  # fields of the body without effect here
    task: asyncio.Task[None] | None = None  # the task that answers it
    route: str = ""  # route pattern, without values of the variable parts
    fault: ApiError | None = None  # why it failed
    ended: ApiError | None = None  # the error with which it was ended from outside
    stop: Callable[[], None] = lambda: None  # ends its answers as if they were complete
    release_time_limit: Callable[[], None] = lambda: None  # removes its time limit
    detached: bool = False  # whether it continues without its connection
    owner: bytes = b""  # digest of its API key
    background: bool = False  # a line of a batch, which waits for other requests
    at_end: list[Callable[[], None]] = field(default_factory=list)  # callbacks that free what the request holds

    @property
    def query(self) -> dict[str, str]:
        """The query of the URL; for repeated names, the last value."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1")))

    def failed(self, error: ApiError) -> None:
        """Records why the request failed."""
        self.fault = error
        self.notes |= {"outcome": "error", "error": error.message}

    def end(self, error: ApiError) -> None:
        """Ends the request from outside: its client gets this error, as a response or in the stream."""
        self.ended = self.ended or error
        if self.task is not None:
            self.task.cancel()

    def close(self) -> None:
        """Frees everything that the request holds, at any stage."""
        while self.at_end:
            self.at_end.pop()()

    @property
    def path_params(self) -> Mapping[str, str]:
        """The variable parts of the path."""
        params: Mapping[str, str] = self.scope.get("path_params", {})
        return params


def below_root(scope: Scope) -> Json:
    """Removes the prefix at which a proxy mounts the server from the path, also if the proxy passes it on."""
    root, path = scope.get("root_path", ""), scope["path"]
    raw = scope.get("raw_path") or path.encode()
    while root and (path == root or path.startswith(root + "/")):  # uvicorn has prepended it to the received path
        path = path[len(root) :] or "/"
        raw = raw[len(root) :] or b"/" if raw.startswith(root.encode()) else path.encode()
    return {**scope, "path": path, "raw_path": raw, "root_path": ""}


@dataclass
class Whole:
    """A response sent in one piece."""

    content: Any  # converted to JSON, unless it is bytes
    status: int = 200
    media_type: bytes = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)
    is_large: bool = False  # converted on a thread, so that other clients do not wait


@dataclass
class Stream:
    """A response sent in pieces: server-sent events, or lines of JSON."""

    pieces: AsyncGenerator[bytes]
    media_type: bytes = EVENT_STREAM
    headers: Mapping[str, str] = field(default_factory=dict)


Response = Whole | Stream
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}  # so that proxies do not buffer events


@dataclass(frozen=True)
class Family:
    """The error format of an API: in a body, and in a stream that has begun."""

    error: Callable[[ApiError, str], Json]  # makes a body from an error and the request's id
    error_event: Callable[[ApiError, str], bytes]


async def send_error(send: Send, family: Family, error: ApiError, call: Call) -> None:
    """Sends an error as the response."""
    headers = {} if error.retry_after is None else {"retry-after": str(max(1, round(error.retry_after)))}
    if error.allow:
        headers["allow"] = error.allow
    if error.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    call.failed(error)
    await send_whole(send, Whole(family.error(error, call.id), error.status, headers=headers), call)


async def send_whole(send: Send, response: Whole, call: Call) -> None:
    """Sends a response in one piece."""
    content = response.content
    if not isinstance(content, bytes):
        content = await asyncio.to_thread(dumps_apart, content) if response.is_large else dumps(content)
    headers = {**response.headers, "content-length": str(len(content))}
    await send(start_of(response.status, response.media_type, call, headers))
    await send({"type": "http.response.body", "body": content})


def start_of(status: int, media_type: bytes, call: Call, headers: Mapping[str, str]) -> Json:
    pairs = [(b"content-type", media_type)]
    pairs += [(name.encode(), value.encode()) for name, value in headers.items()]
    if call.ignored:
        pairs.append((b"x-ignored-fields", ", ".join(call.ignored).encode("unicode_escape")[:1000]))
    return {"type": "http.response.start", "status": status, "headers": pairs}


ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8. A lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
    return ENCODER.encode(value).encode("utf-8", "replace")


def dumps_apart(value: Any) -> bytes:
    """Like `dumps`, for use on a thread: it converts a list row by row, so that other threads run in between."""
    if isinstance(value, dict):
        return b"{" + b",".join(dumps(key) + b":" + dumps_apart(one) for key, one in value.items()) + b"}"
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return b"[" + b",".join([dumps_apart(one) for one in value]) + b"]"
    return dumps(value)
