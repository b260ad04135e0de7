"""The page docs/cli.md: the --help of every command. `python -m tests.cli.help_pages > docs/cli.md` writes it."""

import re
import textwrap
from collections import Counter

from click.testing import CliRunner

from rwkv_gpu.cli.commands import COMMANDS, cli

WIDTH = 110
HEAD = """\
# The command line

The model is a GGUF file, or `builtin`: the small model in the package, and the default of every command but `tune`.
It is the first argument, or comes by `-m`. Where free text can follow, the first argument is the model if it ends in
`.gguf`, is `builtin` or is a path that exists.

Results go to standard output. Statistics, progress and errors go to standard error; progress is shown in a terminal
only. An answer that was cut off, by `--max-tokens` or by a full context, is reported on standard error, and as
`"finish_reason": "length"` in JSON.

Every option can be set in the environment: `--chunk-size` is `RWKV_GPU_CHUNK_SIZE`. A name means the same in all
commands; an option that means something else in one command shows a name of its own, such as `RWKV_GPU_BENCH_PROMPT`.
The command line comes first. `RWKV_GPU_CACHE` is the folder of cached results, such as those of `tune`.

| exit code | |
|---|---|
| 0 | success |
| 1 | the answer is no: `fit` found that a model does not fit, or a line of `batch` has an error |
| 2 | bad input (a value, a file, an option), or output that cannot be written: one line on standard error |
| 3 | the device: none of that name, not enough memory, wrong results |
| 129, 130, 143 | ended by SIGHUP, by Ctrl-C, by SIGTERM (128 + the number of the signal) |
| 141 | the reader of a pipe went away, as `head` does |

This page is made from the `--help` of each command.
"""


def page() -> str:
    """The whole page. Options that several commands share have a section of their own."""
    helps = {name: _help(name) for name in sorted(COMMANDS) if name != "run"}
    counts = Counter(row for groups in helps.values() for group in groups[1:] for row in _rows(group))
    several = {row: text for groups in helps.values() for group in groups[1:] for row, text in _rows(group).items()}
    shared = [(heading, several[heading, words]) for (heading, words), count in counts.items() if count > 1]
    parts = [HEAD, _section("rwkv-gpu", _text()), _section("Options of several commands", _listed(shared))]
    for name, (usage, *groups) in helps.items():
        rows = {row: text for group in groups for row, text in _rows(group).items()}
        own = [(heading, text) for (heading, words), text in rows.items() if counts[heading, words] == 1]
        names = ", ".join(_long_name(text) for row, text in rows.items() if counts[row] > 1)
        also = textwrap.fill(f"Also, of several commands: {names}", WIDTH - 4, break_on_hyphens=False)
        parts.append(_section(f"rwkv-gpu {name}", "\n\n".join([usage, *([_listed(own)] if own else []), also])))
    parts.append(_section("rwkv-gpu run", "The same as rwkv-gpu chat."))
    return "\n".join(parts)


def _text(*arguments: str) -> str:
    return CliRunner().invoke(cli, [*arguments, "--help"], terminal_width=WIDTH).output.rstrip()


def _help(name: str) -> list[str]:
    """The help of a command: its usage and text, then each group of options under its heading."""
    return re.split(r"\n\n(?=\w[\w ]*:\n  -)", _text(name))


def _rows(group: str) -> dict[tuple[str, str], str]:
    """The options of a group by its heading and their words."""
    heading, _, rows = group.partition("\n")
    split = [row.rstrip() for row in re.split(r"\n(?=  -|\n)", rows) if row.startswith("  -")]
    return {(heading, " ".join(row.split())): row for row in split}


def _listed(rows: list[tuple[str, str]]) -> str:
    """Rows under their headings."""
    groups: dict[str, list[str]] = {}
    for heading, row in rows:
        groups.setdefault(heading, []).append(row)
    return "\n\n".join("\n".join([heading, *texts]) for heading, texts in groups.items())


def _long_name(row: str) -> str:
    """The long name of an option: --max-tokens"""
    found = re.search(r"--[\w-]+", row)
    assert found is not None
    return found[0]


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n" + "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())


if __name__ == "__main__":
    print(page(), end="")
