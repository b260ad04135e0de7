"""One HTTP request and its response: what a handler gets, what it gives back, and how that is sent."""

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
    """A request: its parsed body, and what its log line will have."""

    scope: Scope
    id: str
    headers: dict[bytes, bytes]
    began: float = field(default_factory=time.monotonic)
    body: Json = field(default_factory=dict)
    body_bytes: int = 0
    notes: Json = field(default_factory=dict)  # fields of the log line: model, tokens, ...
    ignored: list[str] = field(default_factory=list)  # fields of the body that have no effect here
    task: asyncio.Task[None] | None = None  # that answers it
    route: str = ""  # the path of its route, whose variable parts have no value
    fault: ApiError | None = None  # why it failed
    ended: ApiError | None = None  # why it was ended from outside
    stop: Callable[[], None] = lambda: None  # ends its answers, as if they were complete
    detached: bool = False  # whether it goes on without its connection
    owner: bytes = b""  # digest of the key that it came with
    at_end: list[Callable[[], None]] = field(default_factory=list)  # what gives back what the request holds

    @property
    def query(self) -> dict[str, str]:
        """The query of the URL; of a name that comes twice, the last."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1")))

    def failed(self, error: ApiError) -> None:
        """Notes why it failed."""
        self.fault = error
        self.notes |= {"outcome": "error", "error": error.message}

    def end(self, error: ApiError) -> None:
        """Ends the request from outside: its client gets this error, as a response or within the stream."""
        self.ended = self.ended or error
        if self.task is not None:
            self.task.cancel()

    def close(self) -> None:
        """Gives back all that the request holds, whatever stage it has come to."""
        while self.at_end:
            self.at_end.pop()()

    @property
    def path_params(self) -> Mapping[str, str]:
        """The variable parts of the path."""
        params: Mapping[str, str] = self.scope.get("path_params", {})
        return params


def below_root(scope: Scope) -> Json:
    """A scope whose path begins below the one where a proxy mounts the server, also if the proxy passes that on."""
    root, path = scope.get("root_path", ""), scope["path"]
    raw = scope.get("raw_path") or path.encode()
    while root and (path == root or path.startswith(root + "/")):  # uvicorn has put it before what came
        path = path[len(root) :] or "/"
        raw = raw[len(root) :] or b"/" if raw.startswith(root.encode()) else path.encode()
    return {**scope, "path": path, "raw_path": raw, "root_path": ""}


@dataclass
class Whole:
    """A response of one piece."""

    content: Any  # made JSON, but for bytes
    status: int = 200
    media_type: bytes = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Stream:
    """A response that is sent piece by piece: server-sent events, or lines of JSON."""

    pieces: AsyncGenerator[bytes]
    media_type: bytes = EVENT_STREAM
    headers: Mapping[str, str] = field(default_factory=dict)


Response = Whole | Stream
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}  # no proxy keeps events back


@dataclass(frozen=True)
class Family:
    """How an API says that something went wrong: in a body, and within a stream that has begun."""

    error: Callable[[ApiError, str], Json]  # an error and the id of its request
    error_event: Callable[[ApiError, str], bytes]


async def send_error(send: Send, family: Family, error: ApiError, call: Call) -> None:
    """An error as the response."""
    headers = {} if error.retry_after is None else {"retry-after": str(max(1, round(error.retry_after)))}
    if error.allow:
        headers["allow"] = error.allow
    if error.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    call.failed(error)
    await send_whole(send, Whole(family.error(error, call.id), error.status, headers=headers), call)


async def send_whole(send: Send, response: Whole, call: Call) -> None:
    """A response of one piece."""
    content = response.content if isinstance(response.content, bytes) else dumps(response.content)
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
    """JSON, short and in UTF-8. A lone half of a character, which UTF-8 does not have, becomes a question mark."""
    return ENCODER.encode(value).encode("utf-8", "replace")
