"""Tests of the output of `rwkv-gpu devices`."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from rwkv_gpu import __version__
from rwkv_gpu.cli.commands import cli
from tests.process import posix


def run(*arguments: str):
    return CliRunner().invoke(cli, arguments)


def test_devices_lists_and_explains(adapter):
    result = run("devices", "--device", str(adapter.index))
    assert result.exit_code == 0
    [used] = [line.split(maxsplit=2) for line in result.output.splitlines() if line.startswith("*")]
    assert used[1] == str(adapter.index)
    assert used[2].startswith(adapter.name)
    assert f"asked for by index {adapter.index}" in result.output


def test_devices_json_is_machine_readable(adapter):
    data = json.loads(run("devices", "--json").stdout)
    assert adapter.name in [a["name"] for a in data["adapters"]]
    assert data["chosen"] == "cpu" or data["chosen"] in [a["index"] for a in data["adapters"]]
    assert data["reason"]


def test_cpu_can_be_chosen():
    assert json.loads(run("devices", "--device", "cpu", "--json").stdout)["chosen"] == "cpu"


@pytest.mark.parametrize("wanted", ["99", "no such gpu"])
def test_an_unknown_device_is_refused_in_one_line_with_exit_code_3(wanted):
    result = run("devices", "--device", wanted)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.startswith("rwkv-gpu: no device ")
    assert "cpu" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_device_can_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("RWKV_GPU_DEVICE", "cpu")
    assert "asked for" in run("devices").output


def test_version_and_help_are_printed():
    assert run("--version").output.strip().endswith(__version__)
    assert "devices" in run("--help").output
    assert "Example:" in run("devices", "--help").output


def test_the_command_is_quiet_and_runs_as_a_process():
    command = [sys.executable, "-m", "rwkv_gpu.cli.main", "devices", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    json.loads(done.stdout)


@posix
def test_a_closed_pipe_is_quiet():
    script = f"{sys.executable} -m rwkv_gpu.cli.main devices | true"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_without_a_driver_the_remedy_is_named():
    """A Vulkan loader without any driver, as on a newly installed machine."""
    command = [sys.executable, "-m", "rwkv_gpu.cli.main", "devices", "--device", "0"]
    nowhere = {"VK_DRIVER_FILES": "/nonexistent", "VK_ICD_FILENAMES": "/nonexistent", "WGPU_BACKEND": "vulkan"}
    hide_gl = {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent", "LIBGL_DRIVERS_PATH": "/nonexistent"}
    import os

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **nowhere, **hide_gl}
    )
    if done.returncode == 0:
        pytest.skip("this machine's GPU needs no Vulkan loader")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "install" in done.stderr


@pytest.mark.parametrize("command", ["bench -p 0 -n 1", "profile", "embed", "chat"])
def test_unavailable_matrix_units_are_reported_in_one_line_with_exit_code_3(command):
    result = CliRunner().invoke(cli, [*command.split(), "--device", "cpu", "--matrix-units", "on"], input="hi\n")
    assert result.exit_code == 3
    [line] = result.stderr.splitlines()
    assert "cpu" in line
    assert "name a GPU" in line
