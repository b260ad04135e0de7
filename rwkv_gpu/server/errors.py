"""Errors for clients: status, kind and message, in the format of each API family."""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from rwkv_gpu.errors import (
    BadGrammar,
    BadInput,
    BadTemplate,
    CacheFull,
    Closed,
    ContextFull,
    DeviceLost,
    OutOfMemory,
    QueueFull,
    RwkvGpuError,
    printable,
)
from rwkv_gpu.llm.completion import ALIASES

# "messages[0].role is 3; ...", "lora of 'poet' is 'x'; ..."
FIELD = re.compile(r"([a-z_]+)[\w.\[\]]*(?: of (?:'[^']*'|token \d+))? (?:is|has|holds|names|maps|must|nests) ")
T = TypeVar("T")
TYPES: Mapping[type, str] = {bool: "true or false", str: "a string", list: "a list", dict: "an object"}
# Fields of requests that the library has under another name
SENT = {
    **ALIASES, "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens", "n_probs": "logprobs",
    "stop_sequences": "stop", "content": "input", "dry_sequence_breakers": "dry_breakers", "n_cmpl": "n",
}  # fmt: skip
LONGEST = 1000  # characters of a message, which may quote what a client sent
RETRY_AFTER = 1  # seconds until a retry, unless a better value is known

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    411: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    501: "not_implemented_error",
    503: "unavailable_error",
    504: "timeout_error",
}


def shown(value: Any) -> str:
    """A value of a body for an error message: as it is if short, else its JSON type."""
    kinds: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value)) or json.dumps(value)


def require(fields: Mapping[str, Any], *names: str) -> None:
    """Refuses a request without these fields."""
    for name in names:
        if name not in fields:
            raise ApiError(400, f"{name} is missing", param=name)


def typed(kind: type[T], value: Any, name: str, param: str | None = None) -> T:
    """The value of a field, which must have this type."""
    if not isinstance(value, kind):
        raise ApiError(400, f"{name} is {shown(value)}; it must be {TYPES[kind]}", param=param or name)
    return value


class ApiError(Exception):
    """A request that is refused or fails: its HTTP status, and a message for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        allow: str = "",
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if len(message) > LONGEST:
            message = f"{message[: LONGEST // 2]} ... {message[-LONGEST // 4 :]}"
        self.message = printable(message)
        super().__init__(self.message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.details = details  # more fields of OpenAI's form
        self.allow = allow  # allowed methods, if another one was requested

    def rename(self, body: Mapping[str, Any]) -> None:
        """Names the field as the client did."""
        if self.param is None or body.get(self.param) is not None or not self.message.startswith(self.param):
            return
        for name in body:
            if SENT.get(name) == self.param:
                self.message = name + self.message.removeprefix(self.param)
                self.param = name
                return

    @property
    def kind(self) -> str:
        """The class of the error, by OpenAI's and Anthropic's names."""
        return KINDS.get(self.status, "server_error")


def api_error(error: BaseException) -> ApiError:
    """Converts an error for clients. Unexpected errors are not described, as their text may reveal too much."""
    match error:
        case ApiError():
            return error
        case ContextFull():
            counts = {"n_prompt_tokens": error.tokens, "n_ctx": error.context}
            details = {"type": "exceed_context_size_error", **counts} if error.tokens is not None else {}
            return ApiError(400, str(error), code="context_length_exceeded", details=details)
        case BadTemplate():
            message = str(error).partition("; pass another template")[0]
            return ApiError(400, f"{message}; start the server with --template, or use a model with a template")
        case BadInput() | BadGrammar():
            named = FIELD.match(str(error))
            return ApiError(400, str(error), param=named[1] if named else None)
        case QueueFull() | CacheFull():
            return ApiError(429, str(error), code="queue_full", retry_after=RETRY_AFTER)
        case DeviceLost() | OutOfMemory() | Closed():
            return ApiError(503, f"the model stopped: {error}", code="engine_lost", retry_after=RETRY_AFTER)
        case TimeoutError():
            return ApiError(
                504, "the request took longer than it may; ask for less, or raise --timeout", code="timeout"
            )
        case RwkvGpuError():
            return ApiError(500, str(error))
    return ApiError(500, "the server met an error of its own; its log has the details under this request's id")
