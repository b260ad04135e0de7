"""`rwkv-gpu ps` and `stop` list and stop running servers, and ignore killed ones."""

import json
import math
import os
import platform
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from rwkv_gpu.cli import servers
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.cli.servers import announced, running, servers_folder
from rwkv_gpu.writer_lock import WriterLock
from tests.cli.test_serve import MODEL, serving
from tests.process import posix

pytestmark = posix


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path))
    return tmp_path / "servers"


def run(*arguments):
    return CliRunner().invoke(cli, arguments)


def listed():
    return json.loads(run("ps", "--json").stdout)


def test_a_server_is_listed_until_it_is_stopped_by_port_or_model(folder):
    assert run("ps").stderr == "no server runs; `rwkv-gpu serve` starts one\n"
    with ExitStack() as stack:
        first, url = stack.enter_context(serving(MODEL))
        second, _ = stack.enter_context(serving(MODEL, "--alias", "other:4b=quiet-rwkv7"))
        ports = {row["pid"]: str(row["port"]) for row in listed()}
        assert ports[first.pid] == url.rpartition(":")[2]
        assert [row["models"] for row in listed()] == [["quiet-rwkv7"], ["quiet-rwkv7", "other:4b"]]
        shown = run("ps").stdout
        assert "other:4b" in shown and ports[first.pid] in shown
        for name in ((), ("quiet-rwkv7",), ("nonsense",), ("1",)):
            refused = run("stop", *name)
            assert refused.exit_code == 2
            assert len(refused.stderr.splitlines()) == 1
            assert all(port in refused.stderr for port in ports.values())
        assert run("stop", "OTHER:4b").exit_code == 0
        assert second.wait() == 0
        assert [row["pid"] for row in listed()] == [first.pid]
        assert run("stop").stderr == f"stopped {url}\n"
        assert first.wait() == 0
    assert listed() == []
    assert [*folder.iterdir()] == []
    assert run("stop").stderr == "rwkv-gpu: no server runs; `rwkv-gpu serve` starts one\n"


def test_a_server_that_was_killed_is_not_listed_and_its_file_is_removed(folder):
    with serving(MODEL) as (process, _):
        assert len(listed()) == 1
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert listed() == []
        assert not [*folder.glob("*.json")]


def test_files_of_other_programs_are_ignored(folder, monkeypatch):
    folder.mkdir()
    row = {"url": "u", "port": 1, "models": [], "device": "cpu", "pid": 5, "started": 1.0, "machine": platform.node()}
    rows = [row | {"pid": "5"}, row | {"more": 1}, row | {"pid": 0}, row | {"models": 3}, {}]
    rows += [row | {"pid": 1 << 70}, row | {"started": math.nan}, row | {"started": -math.inf}]
    bad = ["", "[]", "{", "1" * 100_000, *map(json.dumps, rows)]
    for n, text in enumerate(bad):
        (folder / f"{n}.json").write_text(text)
    (folder / "folder.json").mkdir()
    with announced("http://a", 80, ("a",), "cpu"):
        assert [server.url for server, _ in running()] == ["http://a"]
        monkeypatch.setattr("platform.node", lambda: "another machine")
        assert running() == []
    assert len([*folder.iterdir()]) == len(bad) + 1


def test_a_file_that_another_process_is_removing_is_not_listed_as_a_server(monkeypatch):
    with announced("http://a", 80, ("a",), "cpu"):
        [(_, path)] = running()
        text = path.read_text()
    monkeypatch.setattr(servers, "_exists", lambda pid: False)
    path.write_text(text)
    with WriterLock(path):
        assert running() == []


def test_a_server_runs_even_if_its_folder_cannot_be_written(folder):
    folder.parent.joinpath("servers").write_text("a file")
    with announced("http://a", 80, ("a",), "cpu"):
        assert running() == []
    assert servers_folder() == Path(folder)
