"""What the built-in help quotes is true: each command, option, route, variable and name in it exists."""

import re
import tomllib
from pathlib import Path

import click

import rwkv_gpu
from rwkv_gpu.builtin import help
from rwkv_gpu.cli import slash
from rwkv_gpu.cli.commands import COMMANDS, cli
from rwkv_gpu.models.registry import MODELS

ROOT = Path(__file__).resolve().parent.parent
PASSAGES = [passage.text for passage in help.load(tuple(MODELS)).passages]
SPANS = [(span, text) for text in PASSAGES for span in re.findall(r"`([^`]+)`", text)]
CONTEXT = click.Context(cli)
PARAMS = {name: cli.get_command(CONTEXT, name).params for name in COMMANDS}  # type: ignore[union-attr]
FLAGS = {
    name: {flag for param in params for flag in (*param.opts, *param.secondary_opts) if flag.startswith("-")}
    | {"-h", "--help"}
    for name, params in PARAMS.items()
}
EVERY = {flag for flags in FLAGS.values() for flag in flags} | {"--version"}


def flags(text: str) -> set[str]:
    """The options in a text, with one dash or two."""
    return set(re.findall(r"(?<![\w'\"/.=-])--?[a-zA-Z][\w-]*", re.sub(r'"[^"]*"', "", text)))


def test_every_command_line_in_the_help_has_options_of_that_command():
    checked = 0
    for span, text in SPANS:
        called = re.search(r"(?:^|\s)rwkv-gpu ([a-z]+)(.*)", span)
        if not called:
            continue
        assert called[1] in COMMANDS, text
        line = re.split(r" [|<>] |\)$", called[2])[0]
        assert flags(line) <= FLAGS[called[1]], (span, flags(line) - FLAGS[called[1]])
        checked += 1
    assert checked > 250


def test_every_option_that_the_help_names_is_one_of_ours_or_said_to_be_another_engines():
    found = {
        name for passage in PASSAGES if "'s `" not in passage[:24] for name in re.findall(r"`(--[a-z][\w-]*)", passage)
    }
    assert len(found) > 90
    assert found <= EVERY


def test_every_option_that_is_named_with_a_command_belongs_to_it():
    """`--option` of `rwkv-gpu X`, as --help says it."""
    for passage in PASSAGES:
        if of := re.match(r"(.*?) of `rwkv-gpu ([a-z]+)`: ", passage):
            assert flags(of[1].replace("`", " ")) <= FLAGS[of[2]], passage


def test_every_variable_of_the_environment_that_the_help_names_is_read():
    names = {f"RWKV_GPU_{flag.removeprefix('--').replace('-', '_').upper()}" for flag in EVERY}
    names |= {"RWKV_GPU_CACHE", "RWKV_GPU_MODELS"}
    names |= {str(param.envvar) for params in PARAMS.values() for param in params if getattr(param, "envvar", None)}
    for passage in PASSAGES:
        assert set(re.findall(r"RWKV_GPU_[A-Z_]*[A-Z]", passage)) <= names, passage


def test_every_command_of_the_chat_and_route_of_the_server_that_the_help_names_exists():
    routes = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    there = {*slash.COMMANDS, *slash.ALIASES, "etc"}
    checked = 0
    for passage in PASSAGES:
        for name in re.findall(r"(?:(?<=\s)|(?<=`)|^)/([a-z][a-z0-9_/-]*)", passage):
            assert name.partition("/")[0] in there or f"/{name}" in routes, passage
            checked += 1
    assert checked > 150


def test_every_extra_and_page_that_the_help_names_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for passage in PASSAGES:
        for names in re.findall(r"rwkv-gpu\[([a-z,]+)\]", passage):
            assert set(names.split(",")) <= extras.keys(), passage
        for page in re.findall(r"\bdocs/[\w/-]+\.md", passage):
            assert (ROOT / page).exists(), passage


def test_every_name_of_the_library_in_the_help_exists():
    owners = {"rwkv_gpu": rwkv_gpu, "llm": rwkv_gpu.LLM, "chat": rwkv_gpu.Chat}
    checked = 0
    for span, text in SPANS:
        for owner, name in re.findall(r"(?<![\w/.-])(rwkv_gpu|llm|chat)\.([a-z_]\w*)", span):
            if name not in ("chat", "gguf") or owner != "chat":
                assert hasattr(owners[owner], name) or name in ("errors", "ray", "messages", "info"), text
                checked += 1
    assert checked > 20


def test_no_command_of_the_chat_is_denied():
    for name in {*slash.COMMANDS, *slash.ALIASES}:
        assert "There is no" not in help.load(tuple(MODELS)).find(f"what does /{name} do?").answer, name
