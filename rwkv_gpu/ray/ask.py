"""A request as the front passes it to a replica. Does not import Ray."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rwkv_gpu.server.replicas.affinity import Beginning, digest

SCOPE = (
    "type", "http_version", "method", "scheme", "path", "raw_path", "root_path", "query_string", "headers", "client",
    "server",
)  # fmt: skip


@dataclass(frozen=True)
class RoutedRequest:
    """A request: data for the server, and for the choice of a replica."""

    scope: dict[str, Any]  # ASGI scope
    body: bytes = field(repr=False)
    beginnings: Sequence[Beginning] = ()  # prefixes of its conversation, longest last
    session: bytes = b""  # session named by the client
    model: str = ""  # set if replicas have several models
    home: str = ""  # the replica that has the conversation, if the front knows it
    is_bound: bool = False  # whether only that replica can answer: a resumed stream


def plain_scope(scope: Any) -> dict[str, Any]:
    """The parts of a scope that can be sent to another process."""
    return {name: scope[name] for name in SCOPE if name in scope}


def stream_beginning(name: str) -> Beginning:
    """A resumable stream, treated as a conversation that its replica has."""
    return digest(b"stream", name.encode())
