"""A request as the front passes it on to a replica. Knows no Ray."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rwkv_gpu.server.replicas.affinity import Beginning, digest

SCOPE = (
    "type", "http_version", "method", "scheme", "path", "raw_path", "root_path", "query_string", "headers", "client",
    "server",
)  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """A request: what the server needs of it, and what the choice of a replica goes by."""

    scope: dict[str, Any]  # of ASGI
    body: bytes = field(repr=False)
    beginnings: Sequence[Beginning] = ()  # of its conversation, the longest last
    session: bytes = b""  # that the client names
    model: str = ""  # where replicas have several
    home: str = ""  # the replica that has it, where the front knows
    is_bound: bool = False  # whether only that one can answer: a stream that is resumed


def plain_scope(scope: Any) -> dict[str, Any]:
    """What of a scope can be sent to another process."""
    return {name: scope[name] for name in SCOPE if name in scope}


def stream_beginning(name: str) -> Beginning:
    """A stream that can be resumed, as one more conversation that a replica has."""
    return digest(b"stream", name.encode())
