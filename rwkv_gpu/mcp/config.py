"""The file that names MCP servers: `{"mcpServers": {"NAME": {"command": ...} or {"url": ...}}}`."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadFile, printable

MAX_BYTES = 1 << 20
MAX_SERVERS = 32
HTTP = ("http", "streamable-http", "streamableHttp", "streamable_http")  # names of the transport in clients' files


@dataclass(frozen=True)
class ServerConfig:
    """One MCP server: a command that speaks over its standard streams, or a URL."""

    name: str
    command: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def read_config(path: str | os.PathLike[str]) -> list[ServerConfig]:
    """Reads the servers that are not disabled. Raises BadFile with the reason if the file is wrong."""
    where = printable(os.fspath(path))
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        found = json.loads(data) if len(data) <= MAX_BYTES else None
    except OSError as error:
        raise BadFile(f"{where}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{where}: is not JSON: {printable(str(error), 80)}") from None
    servers = found.get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(servers, dict):
        raise BadFile(f'{where}: names no servers; it must be {{"mcpServers": {{"NAME": {{"command": ...}}}}}}')
    if len(servers) > MAX_SERVERS:
        raise BadFile(f"{where}: names {len(servers)} servers; it may name {MAX_SERVERS}")
    used = {name: one for name, one in servers.items() if not (isinstance(one, dict) and one.get("disabled") is True)}
    return [_server(name, one, f"{where}: server {printable(name, 40)}") for name, one in used.items()]


def _server(name: str, given: Any, where: str) -> ServerConfig:
    if not isinstance(given, dict):
        raise BadFile(f"{where} must be an object")
    kind, command, url = given.get("type"), given.get("command"), given.get("url")
    if isinstance(command, str) == isinstance(url, str):
        raise BadFile(f"{where} must have a command or a url, as text")
    if isinstance(url, str):
        if kind not in (None, *HTTP):
            raise BadFile(f"{where} has the type {printable(str(kind), 40)}; use http, which is streamable HTTP")
        if not url.startswith(("http://", "https://")):
            raise BadFile(f"{where}: the url must begin with http:// or https://")
        return ServerConfig(name, url=url, headers=_texts(given, "headers", where))
    args, cwd = given.get("args", []), given.get("cwd")
    if not isinstance(args, list) or not all(isinstance(one, str) for one in args) or not isinstance(cwd, str | None):
        raise BadFile(f"{where}: args must be a list of texts, and cwd a text")
    return ServerConfig(name, command, tuple(args), _texts(given, "env", where), cwd)


def _texts(given: Mapping[str, Any], field: str, where: str) -> dict[str, str]:
    found = given.get(field) or {}
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise BadFile(f"{where}: {field} must map names to texts")
    return found
