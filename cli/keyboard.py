"""Where messages come from: an editor with history on a terminal, a plain line on a dumb one, else standard input."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rwkv_gpu.errors import BadInput

from .texts import read_text

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings

BLOCK = '"""'  # begins and ends a message of several lines


class Source(Protocol):
    """Gives the next message. EOFError: there is none. KeyboardInterrupt: the user gave up this one."""

    def ask(self, mark: str, default: str = "") -> str:
        """The next message; `default` is there to be edited."""


class Piped:
    """One message: the question of the command line, or all of standard input."""

    def __init__(self, question: str | None = None) -> None:
        self._read = False
        self._question = question

    def ask(self, mark: str, default: str = "") -> str:  # noqa: ARG002
        if self._read:
            raise EOFError
        self._read = True
        text = read_text("-") if self._question is None else self._question
        if not text.strip():
            raise BadInput("standard input is empty; pipe a question into the chat, or run it in a terminal")
        return text.strip("\n")


class Dumb:
    """Lines of a terminal that can do nothing; between two lines of \"\"\" they are one message."""

    def ask(self, mark: str, default: str = "") -> str:  # noqa: ARG002
        text = input(mark)
        while is_open(text):
            text += "\n" + input("... ")
        return unblocked(text)


class Editor:
    """A terminal: Enter sends, Alt-Enter or Ctrl-J begins a line, what is pasted stays whole, Up finds what was."""

    def __init__(self, commands: Iterable[str], *, history: Path | None, color: bool) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import Completer, Completion
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.output import ColorDepth
        from prompt_toolkit.shortcuts import CompleteStyle

        class Commands(Completer):
            def get_completions(self, document, _):  # type: ignore[no-untyped-def]
                typed = document.text_before_cursor
                for name in completions(typed, tuple(commands)):
                    yield Completion(name, start_position=-len(typed))

        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)) if history else InMemoryHistory(),
            completer=Commands(),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            multiline=True,
            key_bindings=_keys(),
            enable_open_in_editor=True,
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            prompt_continuation=lambda width, *_: "." * max(0, width - 1) + " ",
        )

    def ask(self, mark: str, default: str = "") -> str:
        text = self._session.prompt([("bold ansicyan", mark)], default=default, handle_sigint=False)
        return unblocked(text)


def _keys() -> "KeyBindings":
    """Enter sends, unless a block is open."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


def completions(typed: str, commands: Sequence[str]) -> list[str]:
    """The slash commands that begin so, and files for those that take one."""
    if not typed.startswith("/") or "\n" in typed:
        return []
    name, spaced, path = typed.partition(" ")
    if not spaced:
        return [command for command in commands if command.startswith(name)]
    if name not in ("/save", "/load"):
        return []
    folder, start = os.path.split(path)
    try:
        found = sorted(entry.name + "/" * entry.is_dir() for entry in os.scandir(folder or "."))
    except OSError:
        return []
    return [f"{name} {os.path.join(folder, entry)}" for entry in found if entry.startswith(start)]


def is_open(text: str) -> bool:
    """Whether a message has begun with a block that has not ended."""
    text = text.strip()
    return text.startswith(BLOCK) and not (len(text) >= 2 * len(BLOCK) and text.endswith(BLOCK))


def unblocked(text: str) -> str:
    """The message without the marks of a block around it."""
    stripped = text.strip()
    if stripped.startswith(BLOCK) and not is_open(stripped):
        return stripped[len(BLOCK) : -len(BLOCK)].strip("\n")
    return stripped


@contextlib.contextmanager
def source(commands: Iterable[str], *, color: bool, question: str | None = None) -> Iterator[Source]:
    """What fits this standard input; a question of the command line is the only one."""
    if question is not None or sys.stdin is None or not sys.stdin.isatty():
        yield Piped(question)
    elif os.environ.get("TERM", "dumb") == "dumb" or not sys.stdout.isatty():
        yield Dumb()
    else:
        with typed_ahead():
            yield Editor(commands, history=history_file(), color=color)


@contextlib.contextmanager
def typed_ahead() -> Iterator[None]:
    """What is typed while an answer comes is not seen, and waits for the editor as it was typed: Enter as Enter."""
    try:
        import termios
    except ImportError:  # Windows has no such modes
        yield
        return
    before = termios.tcgetattr(0)
    quiet = termios.tcgetattr(0)
    quiet[0] &= ~termios.ICRNL
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(0, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)


def history_file() -> Path | None:
    """Where typed messages are kept, readable by their user alone; None where it cannot be written."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rwkv-gpu"
    path = folder / "history"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:
        return None
    return path
