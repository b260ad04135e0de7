"""A tiny MCP server for tests: python -m tests.mcp.tiny_server [stdio | PORT]"""

import os
import sys
import time

from mcp.server import MCPServer

server = MCPServer("tiny")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool()
def repeat(text: str, times: int = 1) -> str:
    """Repeats a text."""
    return text * times


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ValueError("it failed")


@server.tool()
def hang() -> str:
    """Never answers."""
    time.sleep(3600)
    return ""


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["stdio"]):
        server.run()
    else:
        server.run("streamable-http", port=int(sys.argv[1]))
