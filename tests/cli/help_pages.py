"""The page docs/cli.md: the --help of every command. `python -m tests.cli.help_pages > docs/cli.md` writes it."""

from click.testing import CliRunner

from rwkv_gpu.cli.commands import COMMANDS, cli

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
    """The whole page."""
    parts = [HEAD, _section("rwkv-gpu")]
    parts += [_section(f"rwkv-gpu {name}", name) for name in sorted(COMMANDS)]
    return "\n".join(parts)


def _section(title: str, *arguments: str) -> str:
    text = CliRunner().invoke(cli, [*arguments, "--help"], terminal_width=110).output
    return f"## {title}\n\n" + "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())


if __name__ == "__main__":
    print(page(), end="")
