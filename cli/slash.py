"""The slash commands of the chat, as a table."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial

from rwkv_gpu.errors import BadInput, is_count
from rwkv_gpu.measure.sizes import counted

from .attachment import dropped_media
from .chat_preset import save_preset
from .chat_stats import model_line
from .clipboard import clipboard_image, copy
from .conversation import Ask, Conversation
from .session_file import expanded
from .sizes import context_text


class Leave(Exception):
    """Raised to leave the chat."""


@dataclass(frozen=True)
class Slash:
    """A command: its arguments, a line of help, and a function, which may return a question to answer."""

    takes: str
    help: str
    run: Callable[[Conversation, str], Ask | None]


def parsed(text: str) -> tuple[str, str] | None:
    """Splits a message `/name ...` into name and rest. A path such as /etc/passwd is not a command."""
    found = re.match(r"/([a-zA-Z]+!?|\?)(?:\s+(.*))?$", text, re.DOTALL)
    return (found[1].lower(), (found[2] or "").strip()) if found else None


def run(conversation: Conversation, name: str, rest: str) -> Ask | None:
    """Runs a command; returns the question that it asks, if any. Raises BadInput if the command does not exist."""
    name = ALIASES.get(name, name)
    if name not in COMMANDS and name not in FORCED:
        near = "".join(f"did you mean /{one}? " for one in get_close_matches(name, COMMANDS, 1))
        raise BadInput(
            f"there is no command /{name}; {near}/help lists them; to send a message that begins with /, type //"
        )
    return (COMMANDS[name].run if name in COMMANDS else FORCED[name])(conversation, rest)


def leave(_conversation: Conversation, _: str) -> None:
    raise Leave


def show_help(conversation: Conversation, _: str) -> None:
    width = max(len(f"{name} {slash.takes}") for name, slash in COMMANDS.items())
    for name, slash in COMMANDS.items():
        conversation.screen.note(f"  /{f'{name} {slash.takes}':{width}}  {slash.help}", "", width + 5)
    conversation.screen.note(
        '  Alt-Enter or Ctrl-J starts a new line, as does Enter after """.\n'
        "  Ctrl-C stops an answer; a second Ctrl-C, or Ctrl-D, leaves.",
        "dim",
    )


def reset(conversation: Conversation, _: str) -> None:
    # Without a copy, the session file would lose earlier messages, so saving before a new chat would be useless.
    kept = conversation.at + 1 if conversation.session is not None and conversation.chat.messages else 0
    if kept:
        conversation.fork()
    conversation.chat.reset()
    conversation.screen.note(
        "cleared"
        + (", except for the system prompt" if conversation.chat.system else "")
        + (f"; /fork {kept} goes back to the chat as it was" if kept else "")
    )


def undo(conversation: Conversation, _: str) -> None:
    conversation.chat.undo()
    last = conversation.last_question()
    conversation.screen.note(
        f"removed; the last question is now: {_short(last)}" if last else "removed; the chat is empty"
    )


def edit(conversation: Conversation, text: str) -> Ask | None:
    last = conversation.last_question()
    if last is None:
        raise BadInput("the chat has no question yet; ask one first")
    text = text or conversation.source.ask("edit> ", last)
    return (lambda **how: conversation.chat.edit(text, **how)) if text.strip() else None


def fork(conversation: Conversation, number: str) -> None:
    if number:
        conversation.switch(number)
        conversation.screen.note(f"branch {conversation.at + 1} of {len(conversation.branches)}")
        conversation.show_last()
    else:
        before = conversation.at + 1
        conversation.fork()
        conversation.screen.note(f"branch {conversation.at + 1}, a copy; /fork {before} goes back to branch {before}")


def history(conversation: Conversation, count: str) -> None:
    if count and not is_count(count):
        raise BadInput(f"/history takes a number of messages, not {count!r}")
    if not conversation.chat.messages:
        conversation.screen.note("the chat is empty")
    conversation.show_last(int(count) if count else len(conversation.chat.messages))


def add_image(conversation: Conversation, path: str) -> None:
    image = conversation.add_image(expanded(path) if path else clipboard_image())
    conversation.screen.note(f"{path or 'the clipboard'}: {image.tokens} tokens; it goes with your next message")


def add_audio(conversation: Conversation, path: str) -> None:
    if not path:
        raise BadInput("give a file: /audio voice.mp3")
    add_image(conversation, path)


def take_media(conversation: Conversation, message: str) -> str:
    """Adds images and audio whose paths are in a message; returns the rest. Without a projector, paths are text."""
    rest, paths = dropped_media(message)
    if not paths or (rest and conversation.llm.media_input is None):
        return message
    for path in paths:
        add_image(conversation, path)
    return rest


def add_file(conversation: Conversation, path: str) -> None:
    if not path:
        raise BadInput("give a text, source code or PDF: /file report.pdf")
    count = conversation.add_file(path)
    conversation.screen.note(f"{path}: {count:,} tokens; it goes with your next message")


def copy_answer(conversation: Conversation, which: str) -> None:
    answer = conversation.last_answer()
    if which not in ("", "code"):
        raise BadInput(f"/copy takes nothing, or code for the last block of code, not {which!r}")
    if answer is None:
        raise BadInput("there is no answer yet")
    text = _last_code(answer) if which else answer
    way = copy(text)
    conversation.screen.note(f"copied {len(text):,} characters{way}")


def system(conversation: Conversation, text: str) -> None:
    if text:
        conversation.chat.system = None if text == "none" else text
        conversation.screen.note("set; it applies from the next question on")
    else:
        conversation.screen.note(conversation.chat.system or "there is no system prompt; /system TEXT sets one")


def show(conversation: Conversation, _: str) -> None:
    """The model, the system prompt, and the settings that were changed."""
    info, chat = conversation.llm.info, conversation.chat
    context = context_text(conversation.llm.context, info.trained_context)
    facts = {
        "model": f"{info.name or info.architecture}: {info.architecture}, {counted(info.parameters)}, {info.format}",
        **({} if conversation.model is None else conversation.model.where),
        "device": f"{info.device}, context {context}",
        "system": chat.system or "none; /system TEXT sets one",
        **chat.settings,
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        conversation.screen.note(f"  {name:{width}}  {value}", "", width + 4)


def change_model(conversation: Conversation, name: str) -> None:
    """Continues with another model, and reports what it must read again."""
    if not name:
        raise BadInput("name a model: /model qwen3.5:4b; `rwkv-gpu models` and `rwkv-gpu list` have names")
    images = len(conversation.images) + conversation.chat.images
    if not conversation.change_model(name):
        conversation.screen.note("that is the model of this chat already")
        return
    llm, chat = conversation.llm, conversation.chat
    conversation.screen.note(model_line(llm.info))
    if images and llm.media_input is None:
        conversation.screen.note(f"it takes no images or audio: {images} of this chat are left out while it answers")
    if chat.messages:
        conversation.screen.note(f"it reads this chat with your next question: {chat.tokens:,} tokens")


def create(conversation: Conversation, name: str) -> None:
    """Saves the settings that this chat adds to its model as a preset."""
    if not name:
        raise BadInput("give a name: /create my-model")
    if conversation.model is None:
        raise BadInput("this chat has no model with a file")
    save_preset(conversation.chat, conversation.model, name)
    conversation.screen.note(f"created {name}, without the messages; /model {name} and all commands know it")


def tools(conversation: Conversation, _: str) -> None:
    if conversation.tools is None:
        raise BadInput("this chat has no tools; start it with --mcp CONFIG")
    for line in conversation.tools.lines():
        conversation.screen.note(f"  {line}", "")


def set_value(conversation: Conversation, rest: str) -> None:
    kind, _, more = rest.partition(" ")
    if rest in SWITCHES:
        run(conversation, *SWITCHES[rest])
        return
    if kind == "system":  # as in ollama
        system(conversation, more.strip().strip('"'))
        return
    rest = more.strip() if kind == "parameter" else rest
    name, _, value = rest.replace("=", " ", 1).partition(" ")
    if not name:
        for line in conversation.settings():
            conversation.screen.note(f"  {line}", "")
    else:
        conversation.set_value(name, value.strip())


def stats(conversation: Conversation, which: str) -> None:
    if which:
        conversation.shows_stats = switch(which, "/stats")
    for line in conversation.stats():
        conversation.screen.note(f"  {line}", "")


def think(conversation: Conversation, which: str) -> None:
    chat = conversation.chat
    chosen = None if which in ("", "auto") else switch(which, "/think", "auto")
    if not chat.can_think:
        conversation.screen.note(NO_THINKING)
        return
    if which:
        chat.think = chosen
    shown = {None: "default of the chat template", True: "on", False: "off"}
    conversation.screen.note(f"thinking: {shown[chat.think]}")


# What follows /set in ollama, as a command.
SWITCHES = {
    "verbose": ("stats", "on"), "quiet": ("stats", "off"), "think": ("think", "on"), "nothink": ("think", "off"),
}  # fmt: skip
NO_THINKING = "this model has no thinking mode: its chat template cannot switch one on or off; nothing changes"


def switch(text: str, what: str, *others: str) -> bool:
    """Parses on or off."""
    if text not in ("on", "off"):
        raise BadInput(f"{what} takes {', '.join(('on', 'off', *others))}, not {text!r}")
    return text == "on"


def _last_code(answer: str) -> str:
    """The last block of code in an answer."""
    blocks = re.findall(r"^ *(```|~~~)[^\n]*\n(.*?)(?:^ *\1|\Z)", answer, re.DOTALL | re.MULTILINE)
    if not blocks:
        raise BadInput("the last answer has no block of code")
    return str(blocks[-1][1])


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


COMMANDS = {
    "help": Slash("", "Show this list.", show_help),
    "regen": Slash("", "Generate another answer to the last question.", lambda chat, _: chat.chat.regenerate),
    "edit": Slash("[TEXT]", "Change the last question, and ask it again.", edit),
    "undo": Slash("", "Remove the last question and its answer.", undo),
    "reset": Slash("", "Clear the chat.", reset),
    "history": Slash("[N]", "Show the chat so far, or its last N messages.", history),
    "copy": Slash("[code]", "Copy the last answer, or its last block of code.", copy_answer),
    "image": Slash("[FILE]", "Add an image, or that of the clipboard, to your next message.", add_image),
    "audio": Slash("FILE", "Add audio to your next message.", add_audio),
    "file": Slash("PATH", "Add a text, source code or PDF to your next message.", add_file),
    "fork": Slash("[N]", "Continue in a copy of this chat, or in branch N.", fork),
    "save": Slash("FILE", "Save the chat to a file, after every turn.", Conversation.save),
    "load": Slash("FILE", "Continue with the chat in a file.", Conversation.load),
    "create": Slash("NAME", "Name this model with its system prompt and settings.", create),
    "system": Slash("[TEXT|none]", "Show, set or remove the system prompt.", system),
    "model": Slash("NAME", "Continue with another model, which reads this chat again.", change_model),
    "show": Slash("", "Show the model, the system prompt and the settings.", show),
    "set": Slash("[NAME VALUE]", "Show or change settings, such as temperature 0.5.", set_value),
    "tools": Slash("", "List the tools of MCP servers.", tools),
    "think": Slash("[on|off|auto]", "Whether the model thinks before it answers.", think),
    "stats": Slash("[on|off]", "Show totals; show or hide the line after answers.", stats),
    "exit": Slash("", "Leave.", leave),
}
FORCED: dict[str, Callable[[Conversation, str], Ask | None]] = {
    "save!": partial(Conversation.save, replace=True),
    "load!": partial(Conversation.load, drop=True),
}
ALIASES = {"?": "help", "h": "help", "q": "exit", "bye": "exit", "quit": "exit", "clear": "reset", "retry": "regen"}
