"""The README's example runs as it is written, and its figures are those of the profiles."""

import re
import subprocess
import textwrap
from pathlib import Path

import pytest

import rwkv_gpu
from rwkv_gpu.cli.commands import COMMANDS
from tests.golden_files import OWN

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_that_is_named_exists_and_the_page_of_commands_names_each():
    for name in re.findall(r"bin/rwkv-gpu (\w+)", README):
        assert name in COMMANDS
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## rwkv-gpu (\w+)", page, re.MULTILINE)) == COMMANDS.keys()


def test_the_targets_of_make_exist():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"^    make ([\w-]+)", README, re.MULTILINE)) <= {*targets}


@pytest.mark.parametrize(("code", "shown"), [(130, 0), (0, 0), (1, 2)])
def test_make_chat_succeeds_if_ctrl_c_ends_the_chat(tmp_path, code, shown):
    program = tmp_path / "rwkv-gpu"
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    run = ["make", "-o", ".venv/.run", "chat", f"BIN={tmp_path}"]
    assert subprocess.run(run, cwd=ROOT, capture_output=True, check=False).returncode == shown


def test_the_library_example_runs(monkeypatch, capsys):
    [code] = re.findall(r"(    import rwkv_gpu\n(?:    .*\n|\n)*?)As a server", README)
    load = rwkv_gpu.load
    model = OWN / "tiny-rwkv7.gguf"
    monkeypatch.setattr(rwkv_gpu, "load", lambda _path, **given: load(model, **{**given, "device": "cpu"}))
    exec(textwrap.dedent(code), {})
    assert capsys.readouterr().out


def test_the_figures_of_speed_are_in_the_profile():
    profile = (ROOT / "profiles" / "nvidia-h200.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w[^|]*Q4_K_M) \| (.*) \|$", README, re.MULTILINE)
    assert len(rows) == 3
    for model, cells in rows:
        known = [line for line in profile.splitlines() if line.startswith(f"| {model} |")]
        for pair in cells.split(" | "):
            assert any(f" {pair} " in line for line in known), (model, pair)


def test_nothing_is_claimed_of_devices_that_the_page_on_devices_does_not_show():
    table = README[README.index("## Where it runs") : README.index("## Speed")]
    devices = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    for family in ("AMD", "Intel", "Apple", "DX12"):
        rows = [line for line in devices.splitlines() if family in line and line.count("|") == 7]
        ran_on_gpu = any("the GPU" in line.split("|")[3] for line in rows)
        [row] = [line for line in table.splitlines() if line.startswith("|") and family in line]
        assert rows
        assert ran_on_gpu or "not run" in row, family


def test_the_number_of_architectures_equals_that_of_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    [here] = re.findall(r"(\d+) architectures", README)
    assert f"Support {here} architectures" in changelog


def test_the_recording_shows_a_real_answer():
    text = (ROOT / "docs" / "recording.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert text.count("<animate") > 10
    assert "rwkv-gpu chat &quot;What is the sea?&quot;" in text
