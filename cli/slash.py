"""What can be said to the chat itself: a table of commands that begin with a slash."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rwkv_gpu.errors import BadInput

if TYPE_CHECKING:
    from .talk import Talk


class Leave(Exception):
    """The chat is over."""


@dataclass(frozen=True)
class Slash:
    """A command: what may follow its name, what it does in a line, and the function that does it."""

    takes: str
    help: str
    run: Callable[["Talk", str], None]


def parsed(text: str) -> tuple[str, str] | None:
    """The name and what follows, of a message that is a command: `/name ...`. What begins with a path is none."""
    found = re.match(r"/([a-zA-Z]+|\?)(?:\s+(.*))?$", text, re.DOTALL)
    return (found[1].lower(), (found[2] or "").strip()) if found else None


def run(talk: "Talk", name: str, rest: str) -> None:
    """Does a command; BadInput where there is none of that name."""
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        raise BadInput(f"there is no command /{name}; /help lists them, and a message that begins with / is sent by //")
    COMMANDS[name].run(talk, rest)


def show_help(talk: "Talk", _: str) -> None:
    width = max(len(f"{name} {slash.takes}") for name, slash in COMMANDS.items())
    for name, slash in COMMANDS.items():
        talk.screen.note(f"  /{f'{name} {slash.takes}':{width}}  {slash.help}", "")
    talk.screen.note(
        '  Alt-Enter or Ctrl-J begins a new line, as does Enter after """.\n'
        "  Ctrl-C stops an answer; once more, or Ctrl-D, leaves.",
        "dim",
    )


def reset(talk: "Talk", _: str) -> None:
    talk.chat.reset()
    talk.screen.note("forgotten" + (", all but the system message" if talk.chat.system else ""))


def undo(talk: "Talk", _: str) -> None:
    talk.chat.undo()
    last = talk.last_question()
    talk.screen.note(f"dropped; the last question is now: {_short(last)}" if last else "dropped; nothing is left")


def regenerate(talk: "Talk", _: str) -> None:
    talk.answer(talk.chat.regenerate)


def edit(talk: "Talk", text: str) -> None:
    last = talk.last_question()
    if last is None:
        raise BadInput("the chat has no question yet; ask one first")
    text = text or talk.source.ask("edit> ", last)
    if text.strip():
        talk.answer(lambda **how: talk.chat.edit(text, **how))


def save(talk: "Talk", path: str) -> None:
    path = path or (talk.session or "")
    if not path:
        raise BadInput("say where to: /save talk.chat")
    talk.chat.save(path)
    talk.screen.note(f"saved to {path}; /load {path} or --session {path} goes on from here")


def load(talk: "Talk", path: str) -> None:
    if not path:
        raise BadInput("say from where: /load talk.chat")
    talk.replace(talk.llm.load_chat(path))
    talk.screen.note(f"loaded {path}: {len(talk.chat.messages)} messages, {talk.chat.tokens:,} tokens")
    talk.show_last()


def fork(talk: "Talk", number: str) -> None:
    if not number:
        talk.branches.append(talk.chat.fork())
        talk.at = len(talk.branches) - 1
        talk.screen.note(f"this is branch {talk.at + 1} of {len(talk.branches)}; /fork {talk.at} goes back")
        return
    if not number.isdigit() or not 1 <= int(number) <= len(talk.branches):
        raise BadInput(f"there is no branch {number}; /fork alone makes one, /fork 1 to {len(talk.branches)} go to one")
    talk.at = int(number) - 1
    talk.screen.note(f"branch {number} of {len(talk.branches)}")
    talk.show_last()


def system(talk: "Talk", text: str) -> None:
    if text:
        talk.chat.system = None if text == "none" else text
        talk.screen.note("set; it holds from the next question on")
    else:
        talk.screen.note(talk.chat.system or "there is no system message; /system TEXT sets one")


def set_value(talk: "Talk", rest: str) -> None:
    name, _, value = rest.replace("=", " ", 1).partition(" ")
    if not name:
        for line in talk.settings():
            talk.screen.note(f"  {line}", "")
    else:
        talk.set_value(name, value.strip())


def stats(talk: "Talk", which: str) -> None:
    if which:
        talk.shows_stats = switch(which, "/stats")
    for line in talk.totals():
        talk.screen.note(f"  {line}", "")


def think(talk: "Talk", which: str) -> None:
    if which:
        talk.chat.think = None if which == "auto" else switch(which, "/think", "auto")
    says = {None: "as the model's template has it", True: "on", False: "off"}
    talk.screen.note(f"thinking: {says[talk.chat.think]}")


def leave(_talk: "Talk", _: str) -> None:
    raise Leave


def switch(text: str, what: str, *others: str) -> bool:
    """on or off."""
    if text not in ("on", "off"):
        raise BadInput(f"{what} takes {', '.join(('on', 'off', *others))}, not {text!r}")
    return text == "on"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


COMMANDS = {
    "help": Slash("", "This list.", show_help),
    "regen": Slash("", "Another answer to the last question.", regenerate),
    "edit": Slash("[TEXT]", "Change the last question.", edit),
    "undo": Slash("", "Drop the last question and its answer.", undo),
    "reset": Slash("", "Forget what was said.", reset),
    "fork": Slash("[N]", "Go on in a copy of this chat, or in branch N.", fork),
    "save": Slash("PATH", "Write the chat to a file.", save),
    "load": Slash("PATH", "Go on with a chat from a file.", load),
    "system": Slash("[TEXT|none]", "Show, set or take away what it is told first.", system),
    "set": Slash("[NAME VALUE]", "Show or change settings, as temperature 0.5.", set_value),
    "think": Slash("[on|off|auto]", "Whether it thinks before it answers.", think),
    "stats": Slash("[on|off]", "Show totals, or switch the line after answers.", stats),
    "exit": Slash("", "Leave.", leave),
}
ALIASES = {"?": "help", "bye": "exit", "quit": "exit", "clear": "reset", "retry": "regen"}
