"""Tools of MCP servers over HTTP."""

import json
import sys
import threading
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from rwkv_gpu.mcp.client import ToolServers
from rwkv_gpu.mcp.config import ServerConfig
from rwkv_gpu.server.tools import MAX_CALLS
from tests.cli.tmux import ROOT
from tests.process import PATIENCE
from tests.server.gate import until
from tests.server.serving import MODEL, serving

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="the extra `mcp` is not installed")
TINY = ServerConfig("tiny", sys.executable, ("-m", "tests.mcp.tiny_server"), {"KEY": "hidden-key"}, str(ROOT))
GONE = ServerConfig("gone", "/no/such/program", env={"KEY": "hidden-key"})


@pytest.fixture(scope="module")
def tooled():
    with serving() as server:
        server.service.tools = ToolServers([TINY, GONE], connect=PATIENCE, call=PATIENCE)
        yield server


def call(server, name, **arguments):
    return server.post("/v1/mcp/call", {"name": name, "arguments": json.dumps(arguments)})


def test_tools_are_listed_without_the_keys_of_their_servers_and_called(tooled):
    found = tooled.get("/v1/mcp/tools")["data"]
    assert [one["function"]["name"] for one in found] == ["add", "repeat", "fail", "hang", "die"]
    assert {one["server"] for one in found} == {"tiny"} and "hidden-key" not in json.dumps(found)
    assert call(tooled, "add", a=1, b=2) == {"content": "3", "is_error": False}
    assert call(tooled, "fail")["is_error"] is True


def test_wrong_calls_and_pages_of_others_are_refused(tooled):
    for body, status in (
        ({}, 400), ({"name": 1}, 400), ({"name": "add", "arguments": {"a": 1}}, 400), ({"name": "nonsense"}, 404),
    ):  # fmt: skip
        assert tooled.request("POST", "/v1/mcp/call", body)[0] == status, body
    assert tooled.post("/v1/mcp/call", {"name": "add", "arguments": "["})["is_error"] is True
    for method, path, body in (("GET", "/v1/mcp/tools", None), ("POST", "/v1/mcp/call", {"name": "add"})):
        assert tooled.request(method, path, body, origin="https://evil.example")[0] == 403
    with serving(cors=("https://friend.example",)) as server:
        assert server.request("GET", "/v1/mcp/tools", origin="https://friend.example")[0] == 403
        assert server.get("/v1/mcp/tools")["data"] == []
        assert server.request("POST", "/v1/mcp/call", {"name": "add"})[0] == 404


def test_calls_at_the_same_time_are_limited_and_a_client_that_leaves_frees_its_place(tooled):
    connections = [tooled.connect() for _ in range(MAX_CALLS)]
    for connection in connections:
        connection.request("POST", "/v1/mcp/call", json.dumps({"name": "hang"}))
    until(lambda: tooled.service.tool_calls == MAX_CALLS)
    assert tooled.request("POST", "/v1/mcp/call", {"name": "add"})[0] == 429
    for connection in connections:
        connection.close()
    until(lambda: tooled.service.tool_calls == 0)


def test_tool_servers_end_with_the_server():
    before = set(threading.enumerate())
    with serving() as server:
        server.service.tools = ToolServers([TINY], connect=PATIENCE, call=PATIENCE)
        assert server.get("/v1/mcp/tools")["data"]
    left = {one.name for one in set(threading.enumerate()) - before}
    assert "rwkv-gpu-mcp" not in left


@pytest.mark.parametrize("options", [("--host", "0.0.0.0", "--insecure"), ("--device", "cpu,cpu")])
def test_tools_without_a_key_on_a_public_address_are_refused(tmp_path, options):
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}}')
    done = CliRunner().invoke(cli, ["serve", str(MODEL), "--mcp", str(file), *options])
    assert done.exit_code == 2 and "--mcp" in done.output
