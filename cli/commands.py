"""The group of all commands. Every error becomes one line and an exit code."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import click

from rwkv_gpu import ContextFull, RwkvGpuError, __version__
from rwkv_gpu.errors import printable

from .page import name_environment, variable_in_use
from .signals import Signals

# Each command is `command` in the module with its name, imported when it is called.
COMMANDS = {
    "batch": "Answer the prompts of a JSONL file, many at a time.",
    "bench": "Measure tokens per second.",
    "chat": "Chat with a model, or ask one question.",
    "completion": "Print the completion script for a shell.",
    "convert": "Write a checkpoint (a folder, .pth, .st, .prefab) as GGUF.",
    "create": "Name a model with a prompt and settings.",
    "devices": "List the devices, and which one is used.",
    "doctor": "Check every kernel on a device against numpy.",
    "download": "Download a model from the Hugging Face hub.",
    "embed": "Compute embeddings of texts.",
    "export": "Write a model as a web page, or for WebGPU programs without Python.",
    "fit": "Check whether a model fits in a device's memory.",
    "generate": "Generate text that continues a prompt.",
    "info": "Show what a model is, and the memory it needs.",
    "list": "List the models that were pulled.",
    "models": "List popular models that fit this device.",
    "perplexity": "Compute the perplexity of a text.",
    "plan": "Show the dispatches of a step, and what each fusion saves.",
    "ps": "List the servers of this user that run here.",
    "profile": "Measure where the time of a model goes.",
    "pull": "Download a model by its name, for all commands.",
    "quantize": "Write a model with fewer bits per weight.",
    "rm": "Delete models that were pulled.",
    "run": "Chat with a model; the first word is its name.",
    "serve": "Serve models over HTTP.",
    "stop": "Stop a server of this user.",
    "tokenize": "Show the tokens of a text.",
    "transcribe": "Print the text of an audio file.",
    "tune": "Find the fastest settings for a device, and save them.",
}
SAME = {"ls": "list", "show": "info"}  # ollama's names of commands
# Commands of other engines, and what to type here.
OTHERS = {
    "search": "models",
    "server": "serve",
    "cli": "chat",
    "complete": "generate",
    "completions": "generate",
    "embedding": "embed",
    "embeddings": "embed",
    "run-batch": "batch",
    "evaluate": "perplexity",
    "delete": "rm",
    "manage": "list",
    "launch": "serve",
    "benchmark": "bench",
    "collect-env": "doctor",
    "cache_prompt": "chat",
    **dict.fromkeys(("awq", "dwq", "gptq", "dynamic_quant", "quantise"), "quantize"),
}
NONE = {
    "cp": "`rwkv-gpu create NEW` names a model by a Modelfile with `FROM OLD`",
    **dict.fromkeys(("push", "upload"), "`hf upload`, of Hugging Face, publishes a model"),
    **dict.fromkeys(("signin", "signout", "login", "logout"), "downloads of private models need HF_TOKEN only"),
    **dict.fromkeys(("lora", "fuse", "train"), "it does not train; `rwkv-gpu convert` reads LoRA adapters for --lora"),
}


CLOSED_PIPE = 141  # the exit code that a shell reports for SIGPIPE
WRITE_FAILED = 2


class Commands(click.Group):
    """Imports a command when it is named, so that `--version` does not load a GPU library."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        name = SAME.get(name, name)
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f".{name}", __package__)
        command: click.Command = module.command
        name_environment(command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[:1]
        if first in (["help"], ["version"]):  # as in other programs
            args = [*args[1:2], f"--{first[0]}"]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # click reads -hf as -h -f; the message shows the option as typed.
            name = "".join(first) or error.option_name
            raise click.UsageError(f"options follow a command, as in `rwkv-gpu chat {name} ...`", ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in {*COMMANDS, *SAME} and not name.startswith("-"):
            ctx.fail(f"no such command '{name}'{instead_of(name)}")
        return super().resolve_command(ctx, args)

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
            OneLine(with_options(error)).show()
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            ctx.exit(130)


def instead_of(name: str) -> str:
    """The end of an error about an unknown command: a similar command, or how to run a model of that name."""
    import difflib  # not needed by a command that succeeds
    import shlex

    from .model_name import could_be_model

    if name in NONE:
        return f"; {NONE[name]}"
    if near := OTHERS.get(name) or "".join(difflib.get_close_matches(name, COMMANDS, 1)):
        return f" (did you mean '{near}'?)"
    if could_be_model(name):
        return f"; `rwkv-gpu run {shlex.quote(name)}` chats with a model"
    return f"; `rwkv-gpu run {shlex.quote(name)}` asks the built-in model" if " " in name else ""


def with_options(error: RwkvGpuError) -> str:
    """Adapts an error to the command line: names options and commands instead of the library's."""
    from rwkv_gpu.models.registry import ENCODER  # not needed by a command that succeeds

    if str(error) == ENCODER:
        return f"{error}; `rwkv-gpu embed` prints them"
    if not isinstance(error, ContextFull):
        return str(error)
    return f"{str(error).partition(';')[0]}; shorten the text, or give a larger --context"


class OneLine(click.ClickException):
    """An error from click or the system, formatted as one line."""

    exit_code = 2

    @classmethod
    def usage(cls, error: click.UsageError) -> "OneLine":
        """Formats an argument error, with a pointer to the help."""
        path = error.ctx.command_path if error.ctx else "rwkv-gpu"
        text = " ".join(error.format_message().split()).rstrip(".")
        name = variable_in_use(error.ctx, error.param) if isinstance(error, click.BadParameter) else None
        where = f" (from {name})" if name else ""
        return cls(f"{text[:1].lower()}{text[1:]}{where}; see {path} --help")

    def show(self, file: Any = None) -> None:
        from .printing import print_text  # not needed by a command that succeeds

        if file is None:
            print_text(f"rwkv-gpu: {self.message}", err=True)
        else:
            click.echo(f"rwkv-gpu: {printable(self.message)}", file=file)


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Converts errors to one line and an exit code; the help of a group without arguments stays unchanged."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        raise OneLine.usage(error) from None
    except BrokenPipeError:
        raise click.exceptions.Exit(CLOSED_PIPE) from None
    except OSError as error:
        raise OneLine(f"{error.filename or 'cannot write the output'}: {error.strerror or error}") from None


@click.group(
    "rwkv-gpu",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: rwkv-gpu models; rwkv-gpu run qwen3.5:4b",
)
@click.version_option(__version__, "-v", "-V", "--version", prog_name="rwkv-gpu")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run GGUF language models, RWKV-7 and transformers, on any GPU."""
    ctx.ensure_object(Signals)
