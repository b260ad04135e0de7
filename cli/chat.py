"""`rwkv-gpu chat`: chats with a model, or asks it one question."""

import sys
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.completion import CHAT_DEFAULTS

from . import slash
from .bars import checking_bar
from .chat_model import ChatModel
from .chat_stats import model_line
from .chat_tools import ChatTools
from .conversation import Conversation
from .keyboard import Piped, Source, source
from .model_name import FileName
from .options import loading_options, model_arguments, shared
from .page import Page
from .repl import Repl
from .sampling import chosen, sampling_options
from .screen import Screen
from .session_file import SessionFile, expanded
from .texts import as_text, read_text, template_text

if TYPE_CHECKING:
    from rwkv_gpu.mcp.client import ToolServers


@click.command("chat", cls=Page, epilog='Example: rwkv-gpu chat; rwkv-gpu chat model.gguf "What is the sea?"')
@model_arguments("[QUESTION]...", instead=["prompt"], asks=True)
@click.option("-p", "--prompt", help="Ask this one question, print the answer and exit.")
@shared("system")
@click.option("--session", metavar="FILE", help="Continue the chat in this file, and save it there.")
@click.option("--half-state", is_flag=True, help="Save the model's state in float16: half as large, and less exact.")
@shared("template", "images")
@click.option("--think/--no-think", default=None, help="Let the model think before it answers, if it can.")
@click.option("--mcp", type=FileName(), metavar="CONFIG", help="Offer the tools of these MCP servers.")
@click.option("--verbose", is_flag=True, help="Show the speed also after the answer to one question.")
@click.option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same.")
@sampling_options(CHAT_DEFAULTS)
@loading_options
@click.pass_context
def command(
    ctx: click.Context, /, model: str, arguments: tuple[str, ...], prompt: str | None, system: str | None,
    session: str | None, half_state: bool, template: str | None, images: tuple[str, ...], think: bool | None,
    mcp: str | None, verbose: bool, no_color: bool,
    loading: dict[str, Any], **options: Any,
) -> None:  # fmt: skip
    """Chat with MODEL, or with the built-in model.

    With a QUESTION, or with text on standard input, print the answer and exit. In the chat, /help lists the commands.
    The first argument is the model if it is a path that exists, or has the form of a name or a path: model.gguf,
    qwen3:4b, hf.co/OWNER/NAME, `builtin`. Ask a question of that form with -p.
    """
    screen = Screen(color=not no_color)
    template = None if template is None else template_text(template)
    context_shift = loading["context_shift"] is not None
    chat_options = ChatOptions(system, template, think, context_shift, chosen(ctx, options))
    question = one_question(" ".join(arguments) or None if prompt is None else prompt)
    file = None if session is None else SessionFile(session, half_state=half_state)
    commands = [f"/{name}" for name in slash.COMMANDS]
    with (
        nullcontext() if file is None else closing(file),
        source(commands, color=screen.color, interrupt=ctx.obj.interrupt, question=question) as asks,
        nullcontext() if mcp is None else closing(ChatTools(tool_servers(mcp), screen, asks)) as tools,
        closing(
            ChatModel(model, screen, ctx.obj, {**loading, "sequences": 2}, warm=not isinstance(asks, Piped))
        ) as chat_model,
    ):
        conversation = begin(chat_model, screen, asks, file, chat_options, tools)
        conversation.half_state = half_state
        for image in images:
            conversation.add_image(expanded(image))
        repl = Repl(conversation, ctx.obj, not isinstance(asks, Piped))
        conversation.shows_stats = verbose or repl.interactive
        if tools is not None:
            tools.greet()
        if repl.interactive:
            _greet(conversation)
        try:
            code = repl.run()
        finally:
            conversation.close()
    sys.exit(code)


@dataclass(frozen=True)
class ChatOptions:
    """Options of the command line that change a chat."""

    system: str | None
    template: str | None
    think: bool | None
    context_shift: bool
    settings: Mapping[str, Any]


def begin(
    model: ChatModel,
    screen: Screen,
    asks: Source,
    file: SessionFile | None,
    options: ChatOptions,
    tools: ChatTools | None = None,
) -> Conversation:
    """Loads the chat of the session file, or starts a new one. Command line options apply to the current branch."""
    llm, defaults = model.llm, model.defaults
    if file is not None:
        llm.model_file.start()
    if file is not None and file.exists:
        with checking_bar(screen):
            branches, at = file.load(llm)
    else:
        branches, at = [llm.chat(template=options.template, **defaults)], 0
    conversation = Conversation(llm, screen, asks, branches, at, file, defaults, model=model, tools=tools)
    chat = conversation.chat
    chat.settings = {**chat.settings, **options.settings}  # type: ignore[typeddict-item]
    if options.context_shift:
        chat.truncate = "left"
    if options.template is not None:
        chat.use_template(options.template)
    if options.system is not None:
        chat.system = options.system
    if options.think is not None and not chat.can_think:
        screen.note(slash.NO_THINKING)
    elif options.think is not None:
        chat.think = options.think
    return conversation


def _greet(conversation: Conversation) -> None:
    screen = conversation.screen
    screen.note(model_line(conversation.llm.info))
    screen.note("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves")
    branches = len(conversation.branches)
    if branches > 1:
        screen.note(f"branch {conversation.at + 1} of {branches}; /fork N switches to branch N")
    conversation.show_last()


def tool_servers(path: str) -> "ToolServers":
    """Starts the MCP servers of a file."""
    from rwkv_gpu.mcp.client import ToolServers  # not needed by a chat without tools
    from rwkv_gpu.mcp.config import read_config

    return ToolServers(read_config(path))


def one_question(question: str | None) -> str | None:
    """The question on the command line; text on standard input comes before it, as in `cat a.txt | ...`."""
    if question is None:
        return None
    if not question.strip():
        raise BadInput("the question is empty")
    piped = "" if sys.stdin is None or sys.stdin.isatty() else read_text("-").strip("\n")
    question = as_text(question.encode("utf-8", "surrogateescape"), "the command line")
    return f"{piped}\n\n{question}" if piped.strip() else question
