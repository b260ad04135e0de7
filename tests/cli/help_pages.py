"""Generates docs/cli.md from the --help of every command: `python -m tests.cli.help_pages > docs/cli.md`."""

import re
from collections import Counter

import click

from rwkv_gpu.cli.commands import COMMANDS, cli

HEAD = """\
# The command line

This page is the reference of all commands, written from their `--help`. [The chat](chat.md), [models](models.md) and [the server](server.md) explain how to use them.

- **Model.** The model is the first argument, or `-m`: a GGUF file, a [name](models.md#get-a-model), or `builtin`, the small model in the package and the default of every command except `tune`. Where text can follow, the first argument is the model if it ends in `.gguf`, is `builtin` or is an existing path.
- **Output.** Results go to standard output; statistics, progress and errors go to standard error. An answer that `--max-tokens` or a full context cut off is reported there, and in JSON as `"finish_reason": "length"`.
- **Environment.** Every option can be set in the environment: `--chunk-size` is `RWKV_GPU_CHUNK_SIZE` in all commands. If an option has different meanings, its row names the variable. The command line has priority. `RWKV_GPU_CACHE` is the folder of cached results.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | "no": `fit` found that the model does not fit, or a line of `batch` has an error |
| 2 | a wrong value, file or option, or output that cannot be written |
| 3 | a device error: unknown name, not enough memory, wrong results |
| 129, 130, 143 | ended by SIGHUP, Ctrl-C or SIGTERM |
| 141 | the reader of the output pipe closed it |
"""  # noqa: E501

SHARED = """\
Options that have the same meaning and default in several commands. Each command below names those that it accepts. All commands have `--help`. In `serve`, sampling options have no defaults: each API has its own.
"""  # noqa: E501
PURPOSES = {
    "Use a model": "chat run generate batch transcribe serve ps stop embed",
    "Get a model": "models pull create list rm download",
    "Write a model": "convert quantize export",
    "Examine a model": "info fit tokenize perplexity",
    "Examine a device": "devices doctor bench profile plan tune",
    "Shell": "completion",
}

Row = tuple[str, str, str]  # group, names and meaning of an option


def page() -> str:
    """Returns the whole page. Options that several commands share are listed once, in a table for each group."""
    commands = {name: command for name in sorted(COMMANDS) if (command := _command(name)) and name != "run"}
    rows = _with_defaults({name: _rows(command) for name, command in commands.items()})
    counts = Counter(row for listed in rows.values() for row in listed)
    shared: dict[str, list[Row]] = {}
    for row in dict.fromkeys(row for listed in rows.values() for row in listed if counts[row] > 1):
        shared.setdefault(row[0], []).append(row)
    parts = [HEAD, f"## Commands\n\n{_index()}", f"## Shared options\n\n{SHARED}"]
    parts += [f"### {group} options\n\n{_listed(listed)}" for group, listed in shared.items()]
    for name, command in commands.items():
        own = [row for row in rows[name] if counts[row] == 1]
        also = _also(rows[name], shared)
        shares = f" Shared options: {also}." if also else ""
        parts.append(f"## rwkv-gpu {name}\n\n`{_usage(name, command)}`: {_text(command)}{shares}\n")
        parts += [_listed(own)] if own else []
    return "\n".join(
        [
            *parts,
            "## rwkv-gpu run\n\nThe same as `rwkv-gpu chat`, but a first argument without a space is always a model.\n",
        ]
    )


def _with_defaults(rows: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Returns the rows, where a sampling option without a default is the same option with its only default."""
    found: dict[Row, set[Row]] = {}
    for row in (row for listed in rows.values() for row in listed):
        found.setdefault((row[0], row[1], _bare(row[2])), set()).add(row)

    def shared(row: Row) -> Row:
        others = found[row[0], row[1], _bare(row[2])] - {row}
        return others.pop() if row[0] == "Sampling" and row[2] == _bare(row[2]) and len(others) == 1 else row

    return {name: [shared(row) for row in listed] for name, listed in rows.items()}


def _bare(meaning: str) -> str:
    """Returns the help of an option without its default."""
    return re.sub(r"  \[default: [^\]]*\]$", "", meaning)


def groups_of(section: str) -> list[str]:
    """Returns the titles of the groups of shared options that a command's section names."""
    return re.findall(r"\[([\w ]+)\]\(#[\w-]+-options\)", section)


def _command(name: str) -> click.Command:
    command: click.Command | None = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def _usage(name: str, command: click.Command) -> str:
    return " ".join(["rwkv-gpu", name, *command.collect_usage_pieces(click.Context(command))])


def _text(command: click.Command) -> str:
    """Returns the help of a command as one paragraph."""
    return _escaped(" ".join((command.help or "").split()))


def _rows(command: click.Command) -> list[Row]:
    ctx = click.Context(command)
    options = [
        param for param in command.get_params(ctx) if isinstance(param, click.Option) and "--help" not in param.opts
    ]
    records = [(getattr(param, "group", "General"), param.get_help_record(ctx)) for param in options]
    return [(group, *record) for group, record in records if record is not None]


def _index() -> str:
    """Returns a table of all commands by purpose."""
    named = [name for names in PURPOSES.values() for name in names.split()]
    assert sorted(named) == sorted(COMMANDS), "name each command in PURPOSES"
    rows = [
        (title, ", ".join(f"[{name}](#rwkv-gpu-{name})" for name in names.split())) for title, names in PURPOSES.items()
    ]
    return _table("purpose", rows)


def _sentence(meaning: str) -> str:
    """Returns the help of an option with its default in parentheses: Port. (default: 8080)"""
    return re.sub(r"  \[(.*)\]$", r" (\1)", re.sub(r"default: \((.*?)\)", r"default: \1", meaning))


def _listed(rows: list[Row]) -> str:
    return _table("option", [(_code(names), _escaped(_sentence(meaning))) for _, names, meaning in rows])


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    return "\n".join([f"| {title} | |", "|---|---|", *(f"| {left} | {right} |" for left, right in rows), ""])


def _code(text: str) -> str:
    return f"`{text}`".replace("|", r"\|")


def _escaped(text: str) -> str:
    """Escapes a text for Markdown, except for code in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if at % 2 else re.sub(r"([|<*\[\]])", r"\\\1", part) for at, part in enumerate(parts))


def _also(rows: list[Row], shared: dict[str, list[Row]]) -> str:
    """Returns the shared options of a command: whole groups, groups with exceptions, or single options."""
    texts = []
    for group, listed in shared.items():
        has, lacks = [row for row in listed if row in rows], [row for row in listed if row not in rows]
        link = f"[{group}](#{group.lower().replace(' ', '-')}-options)"
        if has and len(lacks) <= len(has):
            texts.append(link + (f" except {_names(lacks)}" if lacks else ""))
        elif has:
            texts.append(f"{_names(has)} ({link})")
    return "; ".join(texts)


def _names(rows: list[Row]) -> str:
    found = [re.search(r"--[\w-]+", names) for _, names, _ in rows]
    return ", ".join(f"`{name[0]}`" for name in found if name is not None)


if __name__ == "__main__":
    print(page(), end="")
