"""`rwkv-gpu chat`: talk with a model."""

import sys
from pathlib import Path
from typing import Any

import click

from rwkv_gpu import Chat
from rwkv_gpu.engine.caches import Kind
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.completion import TALKING

from . import slash
from .keyboard import Piped, source
from .opening import open_model
from .options import chunk_option, context_option, device_option, kv_option, model_argument
from .sampling import given, sampling_options
from .screen import Screen
from .signals import Signals
from .talk import Talk


@click.command("chat", epilog='Example: rwkv-gpu chat model.gguf --system "Answer in one sentence."')
@model_argument
@click.option("--system", help="What the model is told before all.")
@click.option("--session", type=click.Path(dir_okay=False), help="Go on with the chat in this file, and keep it there.")
@click.option("--template", help="A built-in chat template by its name, or a file that holds one.")
@click.option(
    "--think/--no-think", default=None, help="Whether the model thinks before it answers, where it knows how."
)
@click.option("--no-color", is_flag=True, help="No colours; so does NO_COLOR.")
@sampling_options(TALKING)
@chunk_option
@context_option
@kv_option
@device_option
@click.pass_obj
def command(
    signals: Signals,
    model: str,
    system: str | None,
    session: str | None,
    template: str | None,
    think: bool | None,
    no_color: bool,
    chunk_size: int,
    context: int | None,
    kv: Kind,
    device: str,
    **settings: Any,
) -> None:
    """Talk with MODEL. In a terminal, /help lists what can be done; what is piped in is one question."""
    screen = Screen(color=not no_color)
    asks = source([f"/{name}" for name in slash.COMMANDS], color=screen.color)
    interactive = not isinstance(asks, Piped)
    template = _template(template)
    with open_model(model, screen, device=device, chunk_size=chunk_size, context=context, kv=kv, sequences=2) as llm:
        chat: Chat
        if session is not None and Path(session).exists():
            chat = llm.load_chat(session)
            chat.settings = {**chat.settings, **given(settings)}  # type: ignore[typeddict-item]
            chat.system = system if system is not None else chat.system
            chat.think = think if think is not None else chat.think
        else:
            chat = llm.chat(system, template=template, think=think, **given(settings))
        talk = Talk(llm, screen, asks, signals, [chat], interactive, session)
        if interactive:
            _greet(talk)
        code = talk.run()
    sys.exit(code)


def _greet(talk: Talk) -> None:
    info = talk.llm.info
    size = f"{info.parameters / 1e9:.2g}B" if info.parameters >= 1e9 else f"{info.parameters / 1e6:.3g}M"
    room = f"context {info.context:,}" if info.context else "no limit of context"
    talk.screen.note(
        f"{info.name or info.architecture} · {info.architecture} {size} {info.format} · {info.device} · {room}"
    )
    talk.screen.note("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves")
    talk.show_last()


def _template(given: str | None) -> str | None:
    """The name of a built-in template, or what a file holds."""
    if given is None or not Path(given).is_file():
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the template {given}: {error}") from None
