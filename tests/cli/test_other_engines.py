"""Options of other engines work, are ignored with a note, or are refused with an alternative."""

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.answer_defaults import preset_of
from rwkv_gpu.cli.commands import COMMANDS, cli
from rwkv_gpu.cli.other_engines import NOT_NEEDED, others, translated
from tests.golden_files import OWN

MODEL = str(OWN / "tiny-rwkv7.gguf")
CPU = ("--device", "cpu")
NAMED = re.compile(r"`(--?[a-z][a-z-]*)")  # an option in an explanation
OWNED = re.compile(r"((?:`-[^`]*`(?:, | and | or |))+) of `rwkv-gpu ([a-z]+)`")  # options of a command


def run(*arguments: object):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def command(name: str) -> click.Command:
    return cli.get_command(click.Context(cli), name)


def test_the_table_of_the_page_equals_that_of_the_parser():
    page = (Path(__file__).parents[2] / "docs" / "comparison.md").read_text(encoding="utf-8")
    hidden = (NOT_NEEDED, "the same")
    rows = [line for line in page.splitlines() if re.match(r"\| (vLLM|llama\.cpp|ollama|mlx-lm) \| `", line)]
    assert rows == [other.row for other in others() if not (other.rare or other.here.startswith(hidden))]
    names = [name for other in others() for name in other.names]
    assert len(set(names)) == len(names)


def test_every_option_of_the_table_works_or_is_explained():
    """The option is tried in each command that loads a model, with every kind of following argument."""
    for title in ("chat", "run", "generate", "serve", "batch", "embed", "convert", "create"):
        one = command(title)
        own = {name for option in one.params for name in option.opts + option.secondary_opts}
        for other in others():
            for name in filter(lambda name: name.startswith("-"), other.names):
                if name in own:
                    assert translated(one, [name, "1"]) == [name, "1"]
                    continue
                name = name.replace("*", "draft-poll")
                words = outcome(one, ["a", name, "1", "b"])
                if isinstance(words, str):
                    assert name in words and len(words) > len(name) + 20
                else:
                    assert words[0] == "a" and words[-1] == "b"
                    assert not any(word.partition("=")[0] == name for word in words)


def outcome(one: click.Command, words: list[str]) -> list[str] | str:
    """Returns the translated arguments, or the error message."""
    try:
        return translated(one, words)
    except click.UsageError as error:
        return error.message


def test_options_that_an_explanation_names_exist():
    """Also as options of the command that it names: `--echo` of `rwkv-gpu generate`"""
    known = {
        title: {name for one in command(title).params for name in one.opts + one.secondary_opts} for title in COMMANDS
    }
    for other in others():
        assert set(NAMED.findall(other.here)) <= set().union(*known.values(), other.names), other
        for names, owner in OWNED.findall(other.here):
            assert set(NAMED.findall(names)) <= known[owner], other


def test_our_own_names_in_the_table_exist():
    known = {name for title in COMMANDS for option in command(title).params for name in option.opts}
    assert {ours.partition("=")[0] for other in others() for ours in other.ours.values()} <= known


def test_options_that_are_not_needed_are_left_out_with_a_note():
    plain = run("generate", MODEL, "-p", "hello", "-n", "3", *CPU)
    noted = run("generate", MODEL, "-t", "8", "-fa", "on", "--no-mmap", "-p", "hello", "-n", "3", *CPU)
    assert noted.exit_code == 0, noted.output
    assert noted.stdout == plain.stdout
    assert "-t of llama.cpp is not needed: the GPU does the work" in noted.stderr
    assert "--no-mmap of llama.cpp is not needed" in noted.stderr


def test_options_with_the_same_meaning_work():
    done = run("generate", MODEL, "-ub", "4", "--max-model-len=64", "-p", "hello", "-n", "3", "--json", *CPU)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["new_tokens"] == 3
    assert translated(command("chat"), ["-hf", "a/b:Q4_K_M", "hi"]) == ["--model=hf.co/a/b:Q4_K_M", "hi"]
    assert translated(command("serve"), ["-m", "a.gguf", "-hf", "a/b"]) == ["a.gguf", "hf.co/a/b"]
    thinks = translated(command("serve"), ["--default-chat-template-kwargs", '{"enable_thinking": false}'])
    assert thinks == ['--chat-template-kwargs={"enable_thinking": false}']
    assert preset_of({"chat_template_kwargs": {"enable_thinking": False}}).reasoning.think is False
    assert translated(command("convert"), ["a", "b.gguf", "--outtype", "q8_0"]) == ["a", "b.gguf", "--type=q8_0"]
    assert translated(command("chat"), ["--think=false", "--think=True"]) == ["--no-think", "--think"]


def test_other_options_are_refused_with_a_replacement_and_values_are_not_read_as_options():
    refused = run("chat", MODEL, "--prompt-cache", "x", "hi", *CPU)
    assert refused.exit_code == 2
    assert "--prompt-cache is an option of llama.cpp; here: --session FILE" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert translated(command("generate"), ["-p", "-t", "-n", "3"]) == ["-p", "-t", "-n", "3"]
    assert translated(command("chat"), ["--", "-t"]) == ["--", "-t"]
    assert all(other.here.startswith(NOT_NEEDED) for other in others() if other.valued)


def test_an_answer_continues_after_the_end_of_a_turn():
    ended, more = (
        run("chat", OWN / "quiet-rwkv7.gguf", "hello there", "--temp", 0, "-n", 90, *flag, *CPU)
        for flag in ([], ["--ignore-eos"])
    )
    assert "at 90 tokens" not in ended.stderr
    assert "at 90 tokens" in more.stderr


@pytest.mark.parametrize(("name", "owner"), [("--host", "serve"), ("--echo", "generate"), ("--imatrix", "quantize")])
def test_an_option_of_another_command_names_that_command(name, owner):
    refused = run("chat", MODEL, name, "x")
    assert refused.exit_code == 2
    assert f"{name} is an option of `rwkv-gpu {owner}`" in refused.stderr
