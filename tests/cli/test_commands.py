"""Common behaviour of all commands: environment variables, errors in one line, and a fast start."""

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
UNUSED = ["jinja2", "asyncio", "ssl", "wgpu.backends.wgpu_native", "rwkv_gpu.llm.model"]  # without an answer
UNUSED_BY_TEXT = ["wgpu.structs", "asyncio", "ssl", "rwkv_gpu.vision.encoder", "rwkv_gpu.vision.audio"]  # in numpy


def run(*arguments: str):
    return CliRunner().invoke(cli, arguments)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["--version"], HEAVY),
        (["--help"], HEAVY),
        *((one, UNUSED) for one in (["list"], ["ps"], ["tokenize", "hi"], ["info", "builtin"])),
        (["chat", "--device", "cpu", "-n", "2", "hi"], UNUSED_BY_TEXT),
    ],
)
def test_a_command_imports_only_what_it_uses(arguments, unused):
    code = (
        f"import sys; sys.argv[1:] = {arguments!r}\n"
        "from rwkv_gpu.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print(); import json; print(json.dumps([name for name in {unused!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.long
def test_a_model_in_numpy_imports_neither_the_gpu_library_nor_projectors():
    code = (
        "import sys, rwkv_gpu\n"
        "with rwkv_gpu.load(device='cpu') as llm: llm.generate('Hello', max_tokens=2)\n"
        f"print([name for name in {UNUSED_BY_TEXT!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_can_be_imported():
    for name in rwkv_gpu.__all__:
        assert getattr(rwkv_gpu, name) is not None
    with pytest.raises(AttributeError):
        rwkv_gpu.nothing_of_that_name  # noqa: B018


def options_of(name: str) -> list[click.Option]:
    command = cli.get_command(click.Context(cli), name)
    return [param for param in command.params if isinstance(param, click.Option)]


def names_of(option: click.Option) -> list[str]:
    return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_an_environment_variable_that_its_help_names(name):
    text = " ".join(run(name, "--help").output.split())
    assert "Example: rwkv-gpu " in text or "Example: eval" in text
    for option in options_of(name):
        if isinstance(option.envvar, str):  # a name of its own is shown; the others follow from the option's names
            assert option.envvar in text
        else:
            flags = [flag for flag in option.opts if flag.startswith("--")]
            assert option.envvar == ["RWKV_GPU_" + flag[2:].replace("-", "_").upper() for flag in flags]
    assert not options_of(name) or "Options can be set in the environment" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_no_two_options_of_a_command_share_a_name_in_the_environment(name):
    names = [each for option in options_of(name) for each in names_of(option)]
    assert len(set(names)) == len(names)


def test_a_name_in_the_environment_means_the_same_in_all_commands():
    meanings: dict[str, tuple] = {}
    for name in COMMANDS:
        for option in options_of(name):
            for each in names_of(option):
                kind = getattr(option.type, "name", ""), option.multiple, option.is_flag
                assert meanings.setdefault(each, kind) == kind, (each, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns_and_uses_the_words_of_the_field(name):
    text = CliRunner().invoke(cli, [name, "--help"], terminal_width=80).output
    assert max(map(len, text.splitlines())) <= 80
    private = re.search(r"(?i)\b(said|told|tell|talk|at most|by itself|before all|likeliest|beside)\b", text)
    assert private is None, private


def test_help_and_version_are_also_commands_as_in_other_programs():
    assert run("help").output == run("--help").output
    assert run("ls", "--json").output == run("list", "--json").output
    assert run("show", "builtin").output == run("info", "builtin").output
    assert run("help", "chat").output == run("chat", "--help").output
    assert run("version").output == run("-V").output == run("--version").output


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_names_its_own_command_in_its_example(name):
    assert f"rwkv-gpu {name}" in run(name, "--help").output.split("Example:")[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--foo"], "--foo"),
        (["genrate"], "'genrate' (did you mean 'generate'?); see rwkv-gpu --help"),
        (["qwen3:4b", "hi"], "no such command 'qwen3:4b'; `rwkv-gpu run qwen3:4b` chats with a model"),
        (["-hf", "a/b"], "options follow a command, as in `rwkv-gpu chat -hf ...`; see rwkv-gpu --help"),
        (["hello there"], "`rwkv-gpu run 'hello there'` asks the built-in model"),
        (
            ["pull", "-y", "qwen3:4b"],
            "-y is an option of `rwkv-gpu batch`, `rwkv-gpu bench`, `rwkv-gpu chat` and others",
        ),
        (["push", "me/mine"], "no such command 'push'; `hf upload`, of Hugging Face, publishes a model"),
        (["cp", "a", "b"], "no such command 'cp'; `rwkv-gpu create NEW` names a model"),
        (["profile", "-n", "4"], "-n is an option of `rwkv-gpu batch`, `rwkv-gpu bench`, `rwkv-gpu chat` and others"),
        (["plan", "nope", "--device", "cpu"], "nope"),
        (["chat", "-np", "2"], "-np is an option of llama.cpp; here: --parallel N of rwkv-gpu serve"),
        (["perplexity"], "missing argument 'FILE'; see rwkv-gpu perplexity --help"),
        (["batch", "m.gguf", "in.jsonl"], "missing argument 'OUT.jsonl'"),
        (["fit", "m.gguf", "n.gguf"], "unexpected extra argument (n.gguf)"),
        (
            ["generate", "m.gguf", "-n", "-2"],
            "must be a whole number of at least 0, or -1; see rwkv-gpu generate --help",
        ),
        (["generate", "m.gguf", "--chunk-size", "none"], "--chunk-size"),
        (["generate", "m.gguf", "--bar"], "--bar"),
    ],
)
def test_a_usage_error_is_reported_in_one_line_with_exit_code_2(arguments, says):
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


def test_the_page_on_the_command_line_equals_the_help_of_the_commands():
    shown = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert shown == page(), "run: python -m tests.cli.help_pages > docs/cli.md"


def test_the_page_on_the_chat_names_every_command():
    text = (ROOT / "docs" / "chat.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`/(\w+)[ \[`]", text)) >= slash.COMMANDS.keys()
