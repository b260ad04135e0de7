"""Connects to MCP servers, and calls their tools. The connections run on their own thread with an event loop.

Each server has a task, in which its connection is opened, used and closed. A failure of one server is reported as a
sentence and does not affect the others.
"""

import asyncio
import json
import logging
import os
import re
import threading
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import MissingExtra, printable
from .config import ServerConfig
from .result import Result, failed, result_of

CONNECT = 60.0  # seconds until a server has listed its tools
CALL = 120.0  # seconds until a call is answered
CLOSE = 10.0  # seconds for all servers to end
MAX_TOOLS = 128  # tools of all servers, as in a request to our server
MAX_DESCRIPTION = 4_000  # characters of a tool's description
NAME = re.compile(r"[^a-zA-Z0-9_.-]")


_open: "weakref.WeakSet[ToolServers]" = weakref.WeakSet()


def close_all() -> None:
    """Ends the tool servers of this process. One that hangs would outlive it."""
    for servers in list(_open):
        servers.close()


@dataclass(frozen=True)
class RemoteTool:
    """A tool of a server; the model calls it by `name`, which is unique, and the server by `own`."""

    name: str
    server: str
    own: str
    description: str
    schema: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The form of OpenAI's API."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


@dataclass(eq=False)
class Connection:
    """A server, the calls that wait for it, and the reason if its connection has ended."""

    config: ServerConfig
    calls: "asyncio.Queue[tuple[str, dict[str, Any], Future[Result]] | None]" = field(default_factory=asyncio.Queue)
    ready: "Future[list[Any]]" = field(default_factory=Future)  # delivers its tools
    fault: str | None = None
    task: "asyncio.Task[None] | None" = None


class ToolServers:
    """The tools of all servers. `begin` may be used from any thread; `close` ends the servers."""

    def __init__(self, configs: Sequence[ServerConfig], *, connect: float = CONNECT, call: float = CALL) -> None:
        """Starts all servers. `tools` waits until each has listed its tools or failed."""
        _check_extra()
        for library in ("mcp", "httpx2"):  # their errors are reported by this package instead
            logging.getLogger(library).setLevel(logging.CRITICAL)
        self._seconds = connect, call
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rwkv-gpu-mcp", daemon=True)
        self._thread.start()
        self._connections = {config.name: Connection(config) for config in configs}
        for connection in self._connections.values():
            self._loop.call_soon_threadsafe(self._start, connection)
        self._closing = threading.Lock()
        _open.add(self)

    @property
    def faults(self) -> list[str]:
        """A sentence about each server that is not available."""
        return [one.fault for one in self._connections.values() if one.fault is not None]

    def tool(self, name: str) -> RemoteTool | None:
        """The tool with this name."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def begin(self, name: str, arguments: str) -> "Future[Result]":
        """Calls a tool. Every failure becomes a result with a message for the model."""
        found, future = self.tool(name), Future[Result]()
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            given = None
        if found is None:
            future.set_result(failed(f"there is no tool {printable(name, 60)}"))
        elif not isinstance(given, dict):
            future.set_result(failed("the arguments are not a JSON object"))
        else:
            connection = self._connections[found.server]
            self._loop.call_soon_threadsafe(self._enqueue, connection, found.own, given, future)
        return future

    def close(self) -> None:
        """Ends all connections, and the processes of servers that were started."""
        with self._closing:
            if self not in _open:
                return
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(CLOSE)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE)
            if not self._loop.is_running():
                self._loop.close()
            _open.discard(self)

    # ------------------------------------------------------------ in the event loop

    def _start(self, connection: Connection) -> None:
        connection.task = self._loop.create_task(self._serve(connection))

    def _enqueue(self, connection: Connection, name: str, given: dict[str, Any], future: "Future[Result]") -> None:
        if connection.fault is not None:
            future.set_result(failed(connection.fault))
        else:
            connection.calls.put_nowait((name, given, future))

    async def _serve(self, connection: Connection) -> None:
        """Serves one connection from start to end. An error ends it, and all its calls."""
        future: Future[Result] | None = None
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._seconds[0]):
                    client = await stack.enter_async_context(await _client(connection.config, stack))
                    connection.ready.set_result(await _listed(client))
                while (call := await connection.calls.get()) is not None:
                    name, given, future = call
                    await self._answer(future, self._called(client, name, given))
        except BaseException as error:  # noqa: BLE001  of transports, which raise anything, in groups
            connection.fault = _sentence(connection, error, self._seconds[0])
            if isinstance(error, asyncio.CancelledError) and not connection.ready.done():
                connection.ready.set_result([])
        finally:
            self._drop(connection, future)

    async def _answer(self, future: "Future[Result]", call: Coroutine[Any, Any, Result]) -> None:
        """Sets the result of a call. Cancelling the future ends the call, so that the next one need not wait."""
        task = self._loop.create_task(call)
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(task.cancel))
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if not task.cancelled():
            with suppress(InvalidStateError):  # cancelled meanwhile
                future.set_result(task.result())

    async def _called(self, client: Any, name: str, given: dict[str, Any]) -> Result:
        from mcp import MCPError

        try:
            async with asyncio.timeout(self._seconds[1]):
                return result_of(await client.call_tool(name, given))
        except TimeoutError:
            return failed(f"no answer within {self._seconds[1]:g} s")
        except MCPError as error:
            if not await _alive(client):
                raise
            return failed(str(error))

    def _drop(self, connection: Connection, current: "Future[Result] | None") -> None:
        """Answers the calls of a connection that has ended."""
        connection.fault = connection.fault or f"MCP server {_shown(connection.config.name)} has ended"
        waiting = [current] if current is not None else []
        while not connection.calls.empty():
            call = connection.calls.get_nowait()
            waiting += [call[2]] if call is not None else []
        for future in waiting:
            if not future.done():
                future.set_result(failed(connection.fault))
        if not connection.ready.done():
            connection.ready.set_result([])

    async def _end(self) -> None:
        tasks = [one.task for one in self._connections.values() if one.task is not None]
        for connection in self._connections.values():
            connection.calls.put_nowait(None)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE / 2)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CLOSE / 2)

    @cached_property
    def tools(self) -> list[RemoteTool]:
        """The tools under unique names. If two servers have a tool of the same name, the server's name precedes it."""
        found = [
            (connection.config.name, tool)
            for connection in self._connections.values()
            for tool in connection.ready.result()
        ]
        own = [_plain(tool.name) for _, tool in found]
        tools: dict[str, RemoteTool] = {}
        for (server, tool), plain in zip(found, own, strict=True):
            name = plain if own.count(plain) == 1 else _plain(f"{server}_{tool.name}")
            if name not in tools and len(tools) < MAX_TOOLS:
                text = printable(tool.description or "", MAX_DESCRIPTION)
                tools[name] = RemoteTool(name, server, tool.name, text, tool.input_schema or {"type": "object"})
        return [*tools.values()]


async def _client(config: ServerConfig, stack: AsyncExitStack) -> Any:
    """The client of a server, not connected yet."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    if config.url is not None:
        http = await stack.enter_async_context(create_mcp_http_client({**config.headers}))
        return Client(streamable_http_client(config.url, http_client=http), cache=None)
    assert config.command is not None
    # A server's log would disturb the screen.
    nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    given = StdioServerParameters(
        command=config.command, args=[*config.args], env={**config.env} or None, cwd=config.cwd,
        encoding_error_handler="replace",
    )  # fmt: skip
    return Client(stdio_client(given, errlog=nowhere), cache=None)


async def _listed(client: Any) -> list[Any]:
    """All tools of a server, page by page."""
    tools: list[Any] = []
    cursor: str | None = None
    while len(tools) < MAX_TOOLS:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


async def _alive(client: Any) -> bool:
    """True if a server answers."""
    try:
        async with asyncio.timeout(5):
            await client.list_tools()
    except Exception:  # noqa: BLE001  of transports, which raise anything
        return False
    return True


def _sentence(connection: Connection, error: BaseException, seconds: float) -> str:
    """Returns a sentence about the failure of a server."""
    config = connection.config
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        why = f"has not listed its tools within {seconds:g} s"
    elif isinstance(error, OSError) and config.command is not None:
        why = f"cannot be started: {printable(config.command, 80)}: {error.strerror or error}"
    elif connection.ready.done():
        why = "has ended"
    else:
        why = f"cannot be reached: {printable(str(error) or type(error).__name__, 120)}"
    return f"MCP server {_shown(config.name)} {why}"


def _shown(name: str) -> str:
    return printable(name, 40)


def _plain(name: str) -> str:
    """Returns a name with only the characters that requests allow."""
    return NAME.sub("_", name)[:64] or "tool"


def _check_extra() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise MissingExtra.of("MCP servers need the package mcp", "mcp") from None
