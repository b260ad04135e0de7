"""`rwkv-gpu chat`: chats with a model, or asks it one question."""

import sys
from pathlib import Path
from typing import Any

import click

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.completion import TALKING

from . import slash
from .chat_options import system_option, template_option
from .keyboard import Piped, source
from .load_model import load_model
from .options import loading_options, model_arguments
from .page import Page
from .repl import Repl
from .sampling import chosen, sampling_options
from .screen import Screen
from .sizes import context_text
from .texts import as_text, read_text, template_text

FOR_BUILTIN = {"temperature": 0.6}  # it is small: likely tokens are better


@click.command("chat", cls=Page, epilog='Example: rwkv-gpu chat; rwkv-gpu chat model.gguf "What is the sea?"')
@model_arguments("[QUESTION]...")
@click.option("-p", "--prompt", help="Ask this one question, print the answer and exit.")
@system_option
@click.option("--session", type=click.Path(dir_okay=False), help="Continue the chat in this file, and save it there.")
@template_option
@click.option("--think/--no-think", default=None, help="Thinking before the answer, for models that can.")
@click.option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same.")
@sampling_options(TALKING)
@loading_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    arguments: tuple[str, ...],
    prompt: str | None,
    system: str | None,
    session: str | None,
    template: str | None,
    think: bool | None,
    no_color: bool,
    loading: dict[str, Any],
    **options: Any,
) -> None:
    """Chat with MODEL, or with the built-in model.

    With a QUESTION, or with text on standard input, print the answer and exit. In the chat, /help lists the commands.
    The first argument is the model if it ends in .gguf, is `builtin` or is a path that exists.
    """
    screen = Screen(color=not no_color)
    template = None if template is None else template_text(template)
    settings = {**(FOR_BUILTIN if model == str(builtin_model()) else {}), **chosen(ctx, options)}
    question = one_question(" ".join(arguments) or None, prompt)
    commands = [f"/{name}" for name in slash.COMMANDS]
    with (
        source(commands, color=screen.color, question=question) as asks,
        load_model(model, screen, warm=not isinstance(asks, Piped), sequences=2, **loading) as llm,
    ):
        if session is not None and Path(session).exists():
            chat = llm.load_chat(session)
            chat.settings = {**chat.settings, **settings}  # type: ignore[typeddict-item]
            chat.system = system if system is not None else chat.system
            chat.think = think if think is not None else chat.think
        else:
            chat = llm.chat(system, template=template, think=think, **settings)
        repl = Repl(llm, screen, asks, ctx.obj, [chat], not isinstance(asks, Piped), session)
        if repl.interactive:
            _greet(repl)
        code = repl.run()
    sys.exit(code)


def _greet(repl: Repl) -> None:
    info = repl.llm.info
    size = f"{info.parameters / 1e9:.2g}B" if info.parameters >= 1e9 else f"{info.parameters / 1e6:.3g}M"
    context = f"context {context_text(info.context, info.trained_context)}"
    repl.screen.note(
        f"{info.name or info.architecture} · {info.architecture} {size} {info.format} · {info.device} · {context}"
    )
    repl.screen.note("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves")
    repl.show_last()


def one_question(argument: str | None, prompt: str | None) -> str | None:
    """The question that the command line asks; text on standard input comes before it, as in `cat a.txt | ...`."""
    if argument is not None and prompt is not None:
        raise BadInput("give the question as an argument or by --prompt, not both")
    question = prompt if argument is None else argument
    if question is None:
        return None
    if not question.strip():
        raise BadInput("the question is empty")
    piped = "" if sys.stdin is None or sys.stdin.isatty() else read_text("-").strip("\n")
    question = as_text(question.encode("utf-8", "surrogateescape"), "the command line")
    return f"{piped}\n\n{question}" if piped.strip() else question
