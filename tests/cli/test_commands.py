"""What all commands have in common: names in the environment, errors in one line, a start that waits for nothing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli import slash
from rwkv_gpu.cli.commands import COMMANDS, cli
from tests.cli.help_pages import page

ROOT = Path(__file__).resolve().parents[2]

HEAVY = ["wgpu", "numpy", "gguf", "rich", "prompt_toolkit", "jinja2", "tokenizers", "rwkv_gpu.llm"]


def run(*arguments: str):
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_a_question_about_the_command_imports_nothing_heavy(arguments):
    code = (
        f"import sys; sys.argv[1:] = {arguments!r}\n"
        "from rwkv_gpu.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print(); import json; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_a_model_in_numpy_does_not_wait_for_the_gpu_library():
    code = (
        "import sys, rwkv_gpu\n"
        "with rwkv_gpu.load(device='cpu') as llm: llm.generate('Hello', max_tokens=2)\n"
        "print('wgpu.backends.wgpu_native' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_every_public_name_is_there():
    for name in rwkv_gpu.__all__:
        assert getattr(rwkv_gpu, name) is not None
    with pytest.raises(AttributeError):
        rwkv_gpu.nothing_of_that_name  # noqa: B018


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_its_name_in_the_environment(name):
    command = cli.get_command(click.Context(cli), name)
    text = run(name, "--help").output
    assert "Example" in text
    for option in command.params:
        if isinstance(option, click.Option) and option.name != "help":
            longest = max(option.opts, key=len)
            assert "RWKV_GPU_" + longest[2:].replace("-", "_").upper() in text


@pytest.mark.parametrize("name", COMMANDS)
def test_no_two_options_of_a_command_share_a_name_in_the_environment(name):
    options = [p.envvar for p in cli.get_command(click.Context(cli), name).params if isinstance(p, click.Option)]
    assert len(set(options)) == len(options)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--foo"], "--foo"),
        (["genrate"], "'genrate'; see rwkv-gpu --help"),
        (["fit"], "missing argument"),
        (["generate", "m.gguf", "-n", "0"], "0 is not in the range x>=1; see rwkv-gpu generate --help"),
        (["generate", "m.gguf", "--chunk-size", "none"], "--chunk-size"),
        (["generate", "m.gguf", "--bar"], "--bar"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(arguments, says):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("rwkv-gpu: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_value_from_the_environment_is_checked_and_named(monkeypatch):
    monkeypatch.setenv("RWKV_GPU_CHUNK_SIZE", "-3")
    result = run("fit", "m.gguf")
    assert result.exit_code == 2
    assert "RWKV_GPU_CHUNK_SIZE" in result.stderr


def test_the_page_on_the_command_line_is_what_the_commands_say():
    shown = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert shown == page(), "run: python -m tests.cli.help_pages > docs/cli.md"


def test_the_page_on_the_chat_names_every_command():
    text = (ROOT / "docs" / "chat.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`/(\w+)[ \[`]", text)) >= slash.COMMANDS.keys()
