"""`rwkv-gpu chat`: talk with a model."""

import sys
from pathlib import Path
from typing import Any

import click

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.llm.completion import TALKING

from . import slash
from .keyboard import Piped, source
from .load_model import load_model
from .options import model_or_builtin, opening_options
from .repl import Repl
from .sampling import given, sampling_options
from .screen import Screen
from .texts import read_text

FOR_BUILTIN = {"temperature": 0.6}  # it is small: the likelier, the better


@click.command("chat", epilog='Example: rwkv-gpu chat; rwkv-gpu chat model.gguf --system "Answer in one sentence."')
@model_or_builtin
@click.option("--system", help="What the model is told before all.")
@click.option("--session", type=click.Path(dir_okay=False), help="Go on with the chat in this file, and keep it there.")
@click.option("--template", help="A built-in chat template by its name, or a file that holds one.")
@click.option(
    "--think/--no-think", default=None, help="Whether the model thinks before it answers, where it knows how."
)
@click.option("--no-color", is_flag=True, help="No colours; so does NO_COLOR.")
@sampling_options(TALKING)
@opening_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    system: str | None,
    session: str | None,
    template: str | None,
    think: bool | None,
    no_color: bool,
    opening: dict[str, Any],
    **settings: Any,
) -> None:
    """Talk with MODEL, or with the built-in model.

    In a terminal, /help lists what can be done; what is piped in is one question.
    """
    screen = Screen(color=not no_color)
    template = _template(template)
    said = {**(FOR_BUILTIN if model == str(builtin_model()) else {}), **given(ctx, settings)}
    commands = [f"/{name}" for name in slash.COMMANDS]
    with (
        source(commands, color=screen.color) as asks,
        load_model(model, screen, warm=not isinstance(asks, Piped), sequences=2, **opening) as llm,
    ):
        if session is not None and Path(session).exists():
            chat = llm.load_chat(session)
            chat.settings = {**chat.settings, **said}  # type: ignore[typeddict-item]
            chat.system = system if system is not None else chat.system
            chat.think = think if think is not None else chat.think
        else:
            chat = llm.chat(system, template=template, think=think, **said)
        repl = Repl(llm, screen, asks, ctx.obj, [chat], not isinstance(asks, Piped), session)
        if repl.interactive:
            _greet(repl)
        code = repl.run()
    sys.exit(code)


def _greet(repl: Repl) -> None:
    info = repl.llm.info
    size = f"{info.parameters / 1e9:.2g}B" if info.parameters >= 1e9 else f"{info.parameters / 1e6:.3g}M"
    room = f"context {info.context:,}" if info.context else "no limit of context"
    repl.screen.note(
        f"{info.name or info.architecture} · {info.architecture} {size} {info.format} · {info.device} · {room}"
    )
    repl.screen.note("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves")
    repl.show_last()


def _template(given: str | None) -> str | None:
    """The name of a built-in template, or what a file holds."""
    return read_text(given) if given is not None and Path(given).is_file() else given
