"""Tools of MCP servers for the chat page. The page asks the user to confirm each call; credentials stay here."""

import asyncio
from functools import partial

from .admin import same_origin
from .call import Call, Response, Whole
from .endpoint import Endpoint
from .errors import ApiError, typed
from .openai import FAMILY
from .routes import Route, get, post
from .service import Service

MAX_CALLS = 32  # maximum calls at the same time


def routes(service: Service) -> list[Route]:
    """The routes for tools."""
    endpoint = partial(Endpoint, service, FAMILY)
    return [get("/v1/mcp/tools", endpoint(tools)), post("/v1/mcp/call", endpoint(call_tool, takes_body=True))]


async def tools(service: Service, call: Call) -> Response:
    """Lists the tools, with their MCP server; none if there are no such servers."""
    _check_origin(call)
    servers = service.tools
    if servers is None:
        return Whole({"object": "list", "data": []})
    listed = await service.work(lambda: servers.tools)
    return Whole({"object": "list", "data": [{**tool.as_dict(), "server": tool.server} for tool in listed]})


async def call_tool(service: Service, call: Call) -> Response:
    """Calls a tool by `name` with `arguments`, a JSON object as text. Returns its text for the model."""
    _check_origin(call)
    name = typed(str, call.body.get("name"), "name")
    arguments = typed(str, call.body.get("arguments", "{}"), "arguments")
    servers = service.tools
    tool = None if servers is None else await service.work(partial(servers.tool, name))
    if servers is None or tool is None:
        raise ApiError(404, f"there is no tool {name[:100]!r} here; GET /v1/mcp/tools lists them", param="name")
    if service.tool_calls >= MAX_CALLS:
        raise ApiError(429, f"{MAX_CALLS} calls of tools are running", retry_after=5)
    service.tool_calls += 1
    try:
        found = await asyncio.wrap_future(servers.begin(name, arguments))
    finally:
        service.tool_calls -= 1
    fields = {"id": call.id, "tool": name, "server": tool.server, "failed": found.failed}
    service.log.info("tool called", extra={"fields": fields})
    return Whole({"content": found.text, "is_error": found.failed})


def _check_origin(call: Call) -> None:
    if not same_origin(call.headers):
        raise ApiError(403, "pages of other origins may not call tools", code="origin_not_allowed")
