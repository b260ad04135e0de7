"""The group of all commands, and the one place where an error becomes a line and an exit code."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import click

from rwkv_gpu import RwkvGpuError, __version__

from .signals import Signals

# Each command is `command` in the module of its name beside this one, loaded when it is called.
COMMANDS = {
    "batch": "Answer many prompts from a file, together.",
    "bench": "Measure tokens a second, by prompt, depth, batch and chunk size.",
    "chat": "Talk with a model.",
    "completion": "Print what a shell needs to complete commands and options.",
    "devices": "List the GPUs, and say which one would be chosen and why.",
    "doctor": "Run every kernel against numpy: which are wrong or slow on a device.",
    "download": "Download a model from the Hugging Face hub.",
    "embed": "Print texts as vectors.",
    "fit": "Say whether a model fits a device, and by which numbers.",
    "generate": "Continue a text.",
    "info": "Summarise a model: architecture, sizes, formats, tokenizer.",
    "perplexity": "Compute how well a model foresees a text.",
    "profile": "Time every dispatch of a model, beside what the device can do.",
    "tokenize": "Show the tokens of a text.",
    "tune": "Find the fastest kernels and settings for a device, and keep them.",
}


class Commands(click.Group):
    """Loads a command when it is named, so that `--version` does not wait for a GPU library."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f".{name}", __package__)
        command: click.Command = module.command
        name_environment(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with in_one_line():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with in_one_line():
                return super().invoke(ctx)
        except RwkvGpuError as error:
            click.echo(f"rwkv-gpu: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            ctx.exit(130)


class OneLine(click.ClickException):
    """A usage error in one line, as all others are."""

    exit_code = 2

    def __init__(self, error: click.UsageError) -> None:
        path = error.ctx.command_path if error.ctx else "rwkv-gpu"
        said = " ".join(error.format_message().split()).rstrip(".")
        super().__init__(f"{said[:1].lower()}{said[1:]}; see {path} --help")

    def show(self, file: Any = None) -> None:
        click.echo(f"rwkv-gpu: {self.message}", err=True, file=file)


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Usage errors become `OneLine`; the help that a group without arguments gives stays what it is."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        raise OneLine(error) from None


def name_environment(command: click.Command) -> None:
    """Gives every option its name in the environment, the same in all commands: --chunk-size is RWKV_GPU_CHUNK_SIZE."""
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_eager:
            longest = max(option.opts, key=len)
            option.envvar = "RWKV_GPU_" + longest.lstrip("-").replace("-", "_").upper()
            option.show_envvar = True


@click.group(
    "rwkv-gpu",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Example: rwkv-gpu devices",
)
@click.version_option(__version__, prog_name="rwkv-gpu")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run GGUF language models, RWKV-7 and transformers, on any GPU."""
    ctx.ensure_object(Signals)
