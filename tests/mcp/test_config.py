"""The file that names MCP servers: other clients' formats are accepted, and errors are one line."""

import json

import pytest

from rwkv_gpu.errors import BadFile
from rwkv_gpu.mcp.config import MAX_SERVERS, ServerConfig, read_config


def test_the_forms_of_other_clients_are_read(tmp_path):
    path = tmp_path / "mcp.json"
    servers = {
        "files": {"command": "npx", "args": ["-y", "server", "/tmp"], "env": {"KEY": "a"}, "type": "stdio"},
        "web": {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer a"}, "type": "http"},
        "off": {"disabled": True},
        "here": {"command": "x", "cwd": "/", "autoApprove": []},
    }
    path.write_text(json.dumps({"mcpServers": servers, "other": 1}))
    assert read_config(path) == [
        ServerConfig("files", "npx", ("-y", "server", "/tmp"), {"KEY": "a"}),
        ServerConfig("web", url="https://example.com/mcp", headers={"Authorization": "Bearer a"}),
        ServerConfig("here", "x", cwd="/"),
    ]


@pytest.mark.parametrize(
    ("servers", "named"),
    [
        ({"a": 3}, "server a must be an object"),
        ({"a": {}}, "a command or a url"),
        ({"a": {"command": "x", "url": "http://a"}}, "a command or a url"),
        ({"a": {"command": 3}}, "a command or a url"),
        ({"a": {"command": "x", "args": "y"}}, "args must be a list"),
        ({"a": {"command": "x", "env": {"A": 1}}}, "env must map"),
        ({"a": {"command": "x", "cwd": 1}}, "cwd a text"),
        ({"a": {"url": "file:///etc/passwd"}}, "must begin with http"),
        ({"a": {"url": "http://a", "type": "sse"}}, "the type sse"),
        ({"a": {"url": "http://a", "headers": []}}, None),
        ({f"s{n}": {"command": "x"} for n in range(MAX_SERVERS + 1)}, "it may name"),
        (None, "names no servers"),
    ],
)
def test_errors_are_reported_in_one_line(tmp_path, servers, named):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    if named is None:
        assert len(read_config(path)) == 1
        return
    with pytest.raises(BadFile) as refused:
        read_config(path)
    assert named in str(refused.value) and "\n" not in str(refused.value)


def test_files_that_are_not_json_are_refused(tmp_path):
    path = tmp_path / "mcp.json"
    for data in (b"", b"{", b"[" * 100_000, b"\xff\xfe", b"[]", b" " * (1 << 21)):
        path.write_bytes(data)
        with pytest.raises(BadFile):
            read_config(path)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(BadFile, match="cannot be read"):
            read_config(missing)
