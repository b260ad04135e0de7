"""The client of MCP servers: both transports, and all kinds of failing servers."""

import socket
import sys
import threading
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="the extra `server` is not installed")

from rwkv_gpu.mcp.client import ToolServers  # noqa: E402
from rwkv_gpu.mcp.config import ServerConfig  # noqa: E402
from rwkv_gpu.mcp.result import MAX_RESULT, Result  # noqa: E402
from tests.cli.tmux import ROOT  # noqa: E402
from tests.process import PATIENCE, until  # noqa: E402

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="the extra `mcp` is not installed")
STDIO = ServerConfig("local", sys.executable, ("-m", "tests.mcp.tiny_server"), cwd=str(ROOT))
NAMES = ["add", "repeat", "fail", "hang", "die"]


@contextmanager
def over_http():
    """Runs the tiny server in a thread. Returns its configuration."""
    from tests.mcp import tiny_server

    listener = socket.create_server(("127.0.0.1", 0))
    app = tiny_server.server.streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until(lambda: server.started)

    def end():
        server.should_exit = True
        thread.join()

    yield ServerConfig("remote", url=f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", headers={"x-key": "a"}), end
    end()


@contextmanager
def connected(*configs, **seconds):
    servers = ToolServers(configs, connect=seconds.pop("connect", PATIENCE), call=seconds.pop("call", PATIENCE))
    try:
        yield servers
    finally:
        servers.close()


def called(servers, name, arguments="{}"):
    return servers.begin(name, arguments).result(PATIENCE)


def test_tools_are_listed_and_called_over_both_transports():
    with over_http() as (remote, _), connected(remote, STDIO) as servers:
        assert [tool.own for tool in servers.tools] == [*NAMES, *NAMES]
        assert [tool.name for tool in servers.tools][:1] == ["remote_add"]  # two servers have it
        assert servers.faults == []
        add = servers.tool("local_add").as_dict()["function"]
        assert add["description"] == "Adds two numbers." and add["parameters"]["required"] == ["a", "b"]
        for server in ("local", "remote"):
            assert called(servers, f"{server}_add", '{"a": 1, "b": 2}') == Result("3")
            assert called(servers, f"{server}_add", '{"a": "x", "b": 2}').failed
            assert called(servers, f"{server}_fail").failed
            long = called(servers, f"{server}_repeat", '{"text": "ab", "times": 100000}')
            assert long.text.startswith("abab") and len(long.text) < MAX_RESULT + 100
            assert f"{200_000 - MAX_RESULT:,} more characters" in long.text
        assert called(servers, "nonsense") == Result("error: there is no tool nonsense", failed=True)
        for wrong in ("[1]", "{", "3"):
            assert called(servers, "local_add", wrong).text == "error: the arguments are not a JSON object"
        assert servers.faults == []


def test_a_tool_name_of_one_server_is_unchanged():
    with connected(STDIO) as servers:
        assert [tool.name for tool in servers.tools] == NAMES


def test_a_server_that_dies_is_reported_in_one_sentence_and_the_others_continue():
    with over_http() as (remote, end), connected(STDIO, remote) as servers:
        waiting = [servers.begin("local_die", "{}"), servers.begin("local_add", '{"a": 1, "b": 2}')]
        for future in waiting:
            assert future.result(PATIENCE) == Result("error: MCP server local has ended", failed=True)
        assert servers.faults == ["MCP server local has ended"]
        assert called(servers, "local_add", '{"a": 1, "b": 2}').failed
        assert called(servers, "remote_add", '{"a": 1, "b": 2}') == Result("3")
        end()
        assert called(servers, "remote_add", '{"a": 1, "b": 2}').failed


def test_a_call_that_hangs_is_abandoned_and_the_server_continues():
    with connected(STDIO, call=0.01) as servers:
        servers.tools  # noqa: B018  waits until they are listed
        assert called(servers, "hang") == Result("error: no answer within 0.01 s", failed=True)
        assert servers.faults == []


def test_a_cancelled_call_does_not_delay_the_next():
    with connected(STDIO) as servers:
        hanging = servers.begin("hang", "{}")
        until(lambda: servers._connections["local"].calls.empty())
        assert hanging.cancel()
        assert called(servers, "add", '{"a": 1, "b": 2}') == Result("3", failed=False)


@pytest.mark.parametrize(
    ("config", "seconds", "fault"),
    [
        (ServerConfig("a", "nonsense-command"), PATIENCE, "a cannot be started: nonsense-command: No such file"),
        (ServerConfig("a", sys.executable, ("-c", "import time; time.sleep(3600)")), 0.2, "has not listed its tools"),
        (ServerConfig("a", sys.executable, ("-c", "print('no JSON')")), PATIENCE, "a cannot be reached"),
        (ServerConfig("a", sys.executable, ("-c", "raise SystemExit(3)")), PATIENCE, "a cannot be reached"),
        (ServerConfig("a", url="http://127.0.0.1:1/mcp"), PATIENCE, "a cannot be reached"),
        (ServerConfig("a\n\x1b[2J", "nonsense-command"), PATIENCE, "cannot be started"),
    ],
)
def test_a_server_that_cannot_be_used_is_reported_in_one_sentence(config, seconds, fault):
    with connected(config, connect=seconds) as servers:
        assert servers.tools == []
        [said] = servers.faults
        assert fault in said and "\n" not in said and "\x1b" not in said
        assert called(servers, "add").failed
    servers.close()  # a second time
