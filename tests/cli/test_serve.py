"""The command that serves: it listens, answers, and ends by a signal as other servers do."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from tests.golden_files import OWN

pytest.importorskip("starlette", reason="the extra `server` is not installed")

MODEL = str(OWN / "quiet-rwkv7.gguf")


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and its base URL."""
    command = [sys.executable, "-m", "rwkv_gpu.cli.main", "serve", "--device", "cpu", "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"serving on (http://\S+)/v1", line):
                yield process, found[1]
                return
        raise AssertionError("it did not start")
    finally:
        process.kill()
        process.communicate()


def asked(url: str, body: object = None) -> dict[str, object]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as response:
        return json.load(response)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_exits_with_0(number):
    with serving(MODEL) as (process, url):
        assert asked(f"{url}/health")["status"] == "ok"
        assert asked(f"{url}/v1/completions", {"prompt": "a", "max_tokens": 1})["model"] == "quiet-rwkv7"
        process.send_signal(number)
        assert process.wait(10) == 0


def test_an_address_that_others_reach_needs_a_key():
    result = CliRunner().invoke(cli, ["serve", MODEL, "--host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "--api-key" in result.output


def test_a_model_that_is_not_there_is_one_line_and_no_server(tmp_path):
    missing = str(tmp_path / "missing.gguf")
    command = [sys.executable, "-m", "rwkv_gpu.cli.main", "serve", missing, "--device", "cpu", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("rwkv-gpu: ")
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_named():
    with serving(MODEL) as (_, url):
        port = url.rpartition(":")[2]
        result = CliRunner().invoke(cli, ["serve", MODEL, "--port", port])
        assert result.exit_code == 2
        assert f"port {port}" in result.output


def test_two_models_of_one_name_are_refused():
    result = CliRunner().invoke(cli, ["serve", MODEL, MODEL])
    assert result.exit_code == 2
    assert "two models" in result.output
