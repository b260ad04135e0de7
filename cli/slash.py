"""What can be said to the chat itself: a table of commands that begin with a slash."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rwkv_gpu.errors import BadInput

if TYPE_CHECKING:
    from .repl import Repl


class Leave(Exception):
    """The chat is over."""


@dataclass(frozen=True)
class Slash:
    """A command: what may follow its name, what it does in a line, and the function that does it."""

    takes: str
    help: str
    run: Callable[["Repl", str], None]


def parsed(text: str) -> tuple[str, str] | None:
    """The name and what follows, of a message that is a command: `/name ...`. What begins with a path is none."""
    found = re.match(r"/([a-zA-Z]+|\?)(?:\s+(.*))?$", text, re.DOTALL)
    return (found[1].lower(), (found[2] or "").strip()) if found else None


def run(repl: "Repl", name: str, rest: str) -> None:
    """Does a command; BadInput where there is none of that name."""
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        raise BadInput(f"there is no command /{name}; /help lists them, and a message that begins with / is sent by //")
    COMMANDS[name].run(repl, rest)


def show_help(repl: "Repl", _: str) -> None:
    width = max(len(f"{name} {slash.takes}") for name, slash in COMMANDS.items())
    for name, slash in COMMANDS.items():
        repl.screen.note(f"  /{f'{name} {slash.takes}':{width}}  {slash.help}", "")
    repl.screen.note(
        '  Alt-Enter or Ctrl-J begins a new line, as does Enter after """.\n'
        "  Ctrl-C stops an answer; once more, or Ctrl-D, leaves.",
        "dim",
    )


def reset(repl: "Repl", _: str) -> None:
    repl.chat.reset()
    repl.screen.note("forgotten" + (", all but the system message" if repl.chat.system else ""))


def undo(repl: "Repl", _: str) -> None:
    repl.chat.undo()
    last = repl.last_question()
    repl.screen.note(f"dropped; the last question is now: {_short(last)}" if last else "dropped; nothing is left")


def regenerate(repl: "Repl", _: str) -> None:
    repl.answer(repl.chat.regenerate)


def edit(repl: "Repl", text: str) -> None:
    last = repl.last_question()
    if last is None:
        raise BadInput("the chat has no question yet; ask one first")
    text = text or repl.source.ask("edit> ", last)
    if text.strip():
        repl.answer(lambda **how: repl.chat.edit(text, **how))


def save(repl: "Repl", path: str) -> None:
    path = path or (repl.session or "")
    if not path:
        raise BadInput("say where to: /save my.chat")
    repl.chat.save(path)
    repl.screen.note(f"saved to {path}; /load {path} or --session {path} goes on from here")


def load(repl: "Repl", path: str) -> None:
    if not path:
        raise BadInput("say from where: /load my.chat")
    repl.replace(repl.llm.load_chat(path))
    repl.screen.note(f"loaded {path}: {len(repl.chat.messages)} messages, {repl.chat.tokens:,} tokens")
    repl.show_last()


def fork(repl: "Repl", number: str) -> None:
    if not number:
        repl.branches.append(repl.chat.fork())
        repl.at = len(repl.branches) - 1
        repl.screen.note(f"this is branch {repl.at + 1} of {len(repl.branches)}; /fork {repl.at} goes back")
        return
    if not number.isdigit() or not 1 <= int(number) <= len(repl.branches):
        raise BadInput(f"there is no branch {number}; /fork alone makes one, /fork 1 to {len(repl.branches)} go to one")
    repl.at = int(number) - 1
    repl.screen.note(f"branch {number} of {len(repl.branches)}")
    repl.show_last()


def system(repl: "Repl", text: str) -> None:
    if text:
        repl.chat.system = None if text == "none" else text
        repl.screen.note("set; it holds from the next question on")
    else:
        repl.screen.note(repl.chat.system or "there is no system message; /system TEXT sets one")


def set_value(repl: "Repl", rest: str) -> None:
    name, _, value = rest.replace("=", " ", 1).partition(" ")
    if not name:
        for line in repl.settings():
            repl.screen.note(f"  {line}", "")
    else:
        repl.set_value(name, value.strip())


def stats(repl: "Repl", which: str) -> None:
    if which:
        repl.shows_stats = switch(which, "/stats")
    for line in repl.totals():
        repl.screen.note(f"  {line}", "")


def think(repl: "Repl", which: str) -> None:
    if which:
        repl.chat.think = None if which == "auto" else switch(which, "/think", "auto")
    says = {None: "as the model's template has it", True: "on", False: "off"}
    repl.screen.note(f"thinking: {says[repl.chat.think]}")


def leave(_repl: "Repl", _: str) -> None:
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
