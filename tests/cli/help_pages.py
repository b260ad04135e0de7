"""The page docs/cli.md: what every --help says. `python -m tests.cli.help_pages > docs/cli.md` writes it anew."""

from click.testing import CliRunner

from rwkv_gpu.cli.commands import COMMANDS, cli

HEAD = """\
# The command line

Every option has a name in the environment, the same in all commands: `--chunk-size` is `RWKV_GPU_CHUNK_SIZE`. What is
said on the command line goes before it. Results go to standard output, all else to standard error; bars are shown in a
terminal only.

| exit code | |
|---|---|
| 0 | done |
| 1 | the answer is no: `fit` says that a model does not fit, `batch` that some lines have an error |
| 2 | bad input: a value, a file, an option. One line on standard error says what to do |
| 3 | the device: none of that name, not enough memory, wrong numbers |
| 130, 143 | interrupted by Ctrl-C, ended by a signal |

This page is made from what the commands say themselves.
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
