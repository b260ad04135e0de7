"""The README's commands exist and its example runs."""

import re
import textwrap
from pathlib import Path

from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import COMMANDS, cli
from tests.golden_files import OWN

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


def test_every_command_that_is_named_exists_and_every_command_is_named():
    named = set(re.findall(r"\| `rwkv-gpu (\w+)", README))
    assert named == COMMANDS.keys()
    for name in named:
        assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0


def test_the_library_example_runs(monkeypatch, capsys):
    [code] = re.findall(r"((?:    .*\n|\n)*?    import rwkv_gpu\n(?:    .*\n|\n)*?)Weights", README)
    load = rwkv_gpu.load
    model = OWN / "tiny-rwkv7.gguf"
    monkeypatch.setattr(rwkv_gpu, "load", lambda path, **given: load(model, **{**given, "device": "cpu"}))
    scope: dict[str, object] = {}
    exec(textwrap.dedent(code), scope)
    assert scope["logits"].shape[1] == 288
    assert capsys.readouterr().out
