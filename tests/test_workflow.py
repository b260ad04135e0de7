"""The workflow for macOS and Windows, which runs on other machines, contains only commands that exist."""

import re
from pathlib import Path

import click
import pytest

from rwkv_gpu.cli.commands import cli

ROOT = Path(__file__).resolve().parent.parent
WORKFLOW = (ROOT / ".github" / "workflows" / "systems.yml").read_text(encoding="utf-8")
TEMPLATE = (ROOT / ".github" / "ISSUE_TEMPLATE" / "gpu.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [WORKFLOW, TEMPLATE], ids=["workflow", "template of an issue"])
def test_every_command_is_one_of_the_program_and_has_such_options(text):
    found = re.findall(r"rwkv-gpu (\w+)((?: [^`\n]+)?)", text)
    assert found
    for name, arguments in found:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, name
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", arguments)) <= known, name


def test_every_system_has_a_backend_that_wgpu_has_there():
    systems = re.findall(r"- \{ system: (\w+)-latest, backend: (\w+), bin: (\w+) \}", WORKFLOW)
    assert systems == [("ubuntu", "Vulkan", "bin"), ("macos", "Metal", "bin"), ("windows", "D3D12", "Scripts")]
    assert WORKFLOW.count("--device ${{ matrix.backend }}") == 2


def test_windows_runs_kernels_with_the_documented_compiler():
    """With FXC, the tests would exceed the time limit of a run."""
    [least] = re.findall(
        r"`dxcompiler.dll` \((\d+)\.(\d+)\.(\d+) or later\)", (ROOT / "docs" / "devices.md").read_text("utf-8")
    )
    [fetched] = re.findall(r"DirectXShaderCompiler/releases/download/v(\d+)\.(\d+)\.(\d+)", WORKFLOW)
    assert tuple(map(int, fetched)) >= tuple(map(int, least))
    assert WORKFLOW.index("$GITHUB_PATH") < WORKFLOW.index("-m pytest")


def test_tests_run_as_make_runs_them():
    """The options are equal, and Mesa compiles without optimisation; otherwise a run would take hours."""
    [line] = re.findall(r"GALLIVM_PERF=nopt (?:\w+= )?\$\(BIN\)/pytest (.*)\n", (ROOT / "Makefile").read_text("utf-8"))
    assert f"python -m pytest {line} --device " in WORKFLOW
    assert "GALLIVM_PERF: nopt" in WORKFLOW
    assert "pip install --quiet -e '.[dev]'" in WORKFLOW
