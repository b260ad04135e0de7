"""The group of all commands, and the one place where a typed error becomes a line and an exit code."""

import importlib
import os
import sys
from typing import Any

import click

from rwkv_gpu import RwkvGpuError, __version__

# Command to the module beside this one that defines it; loaded when it is called.
COMMANDS = {"devices": "devices", "fit": "fit", "generate": "generate", "info": "info"}


class Commands(click.Group):
    """Loads a command when it is named, so that `--version` does not wait for a GPU library."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[name]}", __package__)
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RwkvGpuError as error:
            click.echo(f"rwkv-gpu: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "RWKV_GPU"},
    epilog="Example: rwkv-gpu devices",
)
@click.version_option(__version__, prog_name="rwkv-gpu")
def cli() -> None:
    """Run GGUF language models, RWKV-7 and transformers, on any GPU."""


def main() -> None:
    """The console script."""
    try:
        cli()
    except BrokenPipeError:  # the reader went away, as in `| head`: be quiet about it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
