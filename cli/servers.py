"""The servers of this user on this machine: each has a file in the cache folder, locked for as long as it runs."""

import contextlib
import json
import math
import os
import platform
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rwkv_gpu.errors import BadInput, FileInUse
from rwkv_gpu.llm.folders import cache_folder
from rwkv_gpu.replace_file import replace_bytes
from rwkv_gpu.writer_lock import WriterLock

PAUSE = 0.05  # seconds between two checks of a server that is ending
MAX_BYTES = 1 << 16  # maximum size of a server's file


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    port: int
    models: tuple[str, ...]  # names and aliases
    device: str
    pid: int
    started: float  # seconds since 1970
    machine: str

    def called(self, name: str) -> bool:
        """True if it has this port or serves a model with this name."""
        return name in (str(self.port), self.url) or name.lower() in map(str.lower, self.models)


def servers_folder() -> Path:
    """The folder of servers' files."""
    return cache_folder() / "servers"


@contextlib.contextmanager
def announced(url: str, port: int, models: tuple[str, ...], device: str) -> Iterator[None]:
    """Lists this process among the servers inside the context, if the folder can be written."""
    server = Server(url, port, models, device, os.getpid(), time.time(), platform.node())
    path = servers_folder() / f"{secrets.token_hex(8)}.json"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, BadInput):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(WriterLock(path))  # locked first, as a file without a lock is stale
            stack.callback(path.unlink, missing_ok=True)
            replace_bytes(path, json.dumps(asdict(server)).encode(), lock=lock)
        yield


def running() -> list[tuple[Server, Path]]:
    """The servers with their files, oldest first. Files of killed servers are removed."""
    found = []
    for path in servers_folder().glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            server = _read(path)
            if server.machine == platform.node() and is_running(server, path):
                found.append((server, path))
    return sorted(found, key=lambda one: one[0].started)


def is_running(server: Server, path: Path) -> bool:
    """True if the process of a server's file still has its lock. Otherwise the file is removed."""
    try:
        with WriterLock(path):
            path.unlink(missing_ok=True)
    except FileInUse:
        return _exists(server.pid)  # if it does not exist, another process is removing the file
    return False


def chosen(name: str | None) -> tuple[Server, Path]:
    """The server with a port or a model; without a name, the only one. Otherwise raises BadInput with all servers."""
    found = running()
    those = [one for one in found if name is None or one[0].called(name)]
    if len(those) == 1:
        return those[0]
    if not found:
        raise BadInput("no server runs; `rwkv-gpu serve` starts one")
    which = "several servers run" if name is None else f"{len(those) or 'no'} servers have {name}"
    each = ", ".join(f"{server.port} ({', '.join(server.models)})" for server, _ in those or found)
    raise BadInput(f"{which}; give one of these ports: {each}")


def stop(server: Server, path: Path) -> None:
    """Asks a server to end, and waits until it has."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.pid, signal.SIGTERM)
    while path.exists() and is_running(server, path):
        time.sleep(PAUSE)


def _exists(pid: int) -> bool:
    if os.name == "nt":  # on Windows, signal 0 would end the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _read(path: Path) -> Server:
    with path.open("rb") as file:
        found: dict[str, Any] = json.loads(file.read(MAX_BYTES))
    server = Server(**{**found, "models": tuple(map(str, found["models"]))})
    kinds = {"url": str, "port": int, "device": str, "pid": int, "started": float, "machine": str}
    is_typed = all(type(getattr(server, name)) is kind for name, kind in kinds.items())
    if not is_typed or not 1 <= server.pid < 1 << 31 or not math.isfinite(server.started):
        raise ValueError(f"{path} is not a file of a server")
    return server
