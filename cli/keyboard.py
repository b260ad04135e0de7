"""Sources of messages: an editor with history on a terminal, plain lines on a dumb one, else standard input."""

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rwkv_gpu.errors import BadInput
from rwkv_gpu.replace_file import MAX_OWN
from rwkv_gpu.writer_lock import WINDOWS

from .terminal import PASTE, PASTE_END, PAUSE, Background, Bursts, ask_for_brackets, quiet
from .texts import read_text

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyBindings

BLOCK = '"""'  # delimits a message of several lines


def never() -> bool:
    """The value of `stopped` of a question that no signal interrupts."""
    return False


class Interrupted(KeyboardInterrupt):
    """Ctrl-C at the prompt. `draft` tells whether something was typed."""

    def __init__(self, draft: bool) -> None:
        super().__init__()
        self.draft = draft


class Source(Protocol):
    """Provides the next message. Raises EOFError if there is none, and KeyboardInterrupt if the user cancels it."""

    def ask(self, mark: str, default: str = "") -> str:
        """Returns the next message; `default` is offered for editing."""

    def choose(self, question: str, stopped: Callable[[], bool] = never) -> str:
        """Returns the user's answer to a question of the program, in lower case. It does not count as a message.

        Raises KeyboardInterrupt once `stopped` returns true.
        """

    def discard(self) -> None:
        """Drops all input since the last message. Any thread may call it."""


class Piped:
    """A single message: the question on the command line, or all of standard input."""

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

    def choose(self, question: str, stopped: Callable[[], bool] = never) -> str:  # noqa: ARG002
        raise EOFError

    def discard(self) -> None:
        pass


class Dumb:
    """A terminal without an editor: a message is a line, lines pasted together, or lines between two \"\"\"."""

    def __init__(self) -> None:
        self._bursts = Bursts(0, self._line)
        self._typed: deque[str] = deque()
        self._ended = False
        self._background = Background(0, self._read)
        self._background.start()

    def ask(self, mark: str, default: str = "", stopped: Callable[[], bool] = never) -> str:  # noqa: ARG002
        self._background.stop()
        try:
            print(mark, end="", flush=True)
            text = self._next(stopped)
            while is_open(text):
                print("... ", end="", flush=True)
                text += "\n" + self._next(stopped)
            return unblocked(text)
        finally:
            self._background.start()

    def choose(self, question: str, stopped: Callable[[], bool] = never) -> str:
        return self.ask(question, stopped=stopped).strip().lower()

    def discard(self) -> None:
        self._bursts.drop()
        self._typed.clear()

    def close(self) -> None:
        """Stops reading."""
        self._background.stop()

    def _next(self, stopped: Callable[[], bool]) -> str:
        while not self._typed:
            self._bursts.wait(stopped)
            if self._ended or not self._read():
                print()
                raise EOFError
        return self._typed.popleft()

    def _read(self) -> bool:
        text = self._bursts.next()
        for mark in (PASTE, PASTE_END):
            text = text.replace(mark, "")
        if text:
            self._typed.append(text.rstrip("\r\n"))
        return not self._ended

    def _line(self) -> str:
        """Reads a line with its line end; empty at the end of input."""
        if WINDOWS:  # the descriptor yields bytes in the console's code page
            line = sys.stdin.readline()
            self._ended = not line
            return line
        data = b""
        while not data.endswith(b"\n"):
            more = os.read(0, 1 << 16)
            if not more:
                self._ended = True
                break
            data += more
        return data.decode("utf-8", "replace")


class Editor:
    """A terminal editor: Enter sends, Alt-Enter starts a new line, a paste is one message, Up shows the history."""

    def __init__(
        self, commands: Iterable[str], *, history: Path | None, color: bool, interrupt: Callable[[], None]
    ) -> None:
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

        class SafeHistory(FileHistory):
            def store_string(self, string: str) -> None:
                with contextlib.suppress(OSError):  # a full disk must not end the chat
                    super().store_string(string)

        self._keys = typed_keys(interrupt)
        self._session: PromptSession[str] = PromptSession(
            history=SafeHistory(str(history)) if history else InMemoryHistory(),
            completer=Commands(),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            multiline=True,
            key_bindings=_bindings(),
            enable_open_in_editor=True,
            enable_suspend=True,
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            prompt_continuation=lambda width, *_: "." * max(0, width - 1) + " ",
            input=self._keys.input if self._keys else None,
        )
        self._start()

    def ask(self, mark: str, default: str = "") -> str:
        return unblocked(self._prompted(self._session, mark, default))

    def choose(self, question: str, stopped: Callable[[], bool] = never) -> str:
        import asyncio

        from prompt_toolkit import PromptSession

        typed = self._keys.input if self._keys else None
        session: PromptSession[str] = PromptSession(key_bindings=_bindings(), input=typed)  # has its own history

        async def watch() -> None:
            while not stopped():
                await asyncio.sleep(PAUSE)
            session.app.exit(exception=KeyboardInterrupt())

        answer = self._prompted(session, question, start=lambda: session.app.create_background_task(watch()))
        if self._keys is not None:
            self._keys.interrupt()
        return answer.strip().lower()

    def _prompted(self, session: "PromptSession[str]", mark: str, default: str = "", start: Any = None) -> str:
        if self._keys is not None:
            self._keys.give()
        try:
            return session.prompt([("bold ansicyan", mark)], default=default, handle_sigint=False, pre_run=start)
        finally:
            self._start()

    def discard(self) -> None:
        if self._keys is not None:
            self._keys.discard()

    def close(self) -> None:
        """Stops reading."""
        if self._keys is not None:
            self._keys.background.stop()

    def _start(self) -> None:
        """Starts reading keys between two prompts. Enables paste brackets again, which a prompt disables."""
        if self._keys is not None:
            ask_for_brackets()
            self._keys.background.start()


class TypedKeys(Protocol):
    """The keys of a terminal, including those pressed while no prompt is waiting."""

    background: Background

    @property
    def input(self) -> "Input":
        """The input object for a prompt."""

    def give(self) -> None:
        """Stops reading in the background, and passes the keys to the next prompt."""

    def interrupt(self) -> None:
        """Interrupts if Ctrl-C followed Enter so soon that the prompt has kept it for the next one."""

    def discard(self) -> None:
        """Drops the keys read so far."""


def typed_keys(interrupt: Callable[[], None]) -> TypedKeys | None:
    """The keys of standard input; None on Windows, where prompt_toolkit reads them differently.

    Ctrl-C calls `interrupt` while no prompt is waiting.
    """
    try:
        from prompt_toolkit.input.typeahead import clear_typeahead, get_typeahead, store_typeahead
        from prompt_toolkit.input.vt100 import Vt100Input
        from prompt_toolkit.key_binding import KeyPress
        from prompt_toolkit.keys import Keys as Names
    except (ImportError, AssertionError):
        return None

    class Keys(Vt100Input):
        def __init__(self) -> None:
            super().__init__(sys.stdin)
            self._bursts = Bursts(self.fileno(), self.stdin_reader.read)
            self.background = Background(self.fileno(), self._collect)

        @property
        def input(self) -> Vt100Input:
            return self

        def read_keys(self) -> list[KeyPress]:
            self.vt100_parser.feed(self._bursts.next())
            keys, self._buffer = self._buffer, []
            return keys

        def _collect(self) -> bool:
            if data := self._bursts.next(interrupt):
                self.vt100_parser.feed(data)
            return not self.closed

        def give(self) -> None:
            self.background.stop()
            store_typeahead(self, self._buffer)
            self._buffer = []

        def interrupt(self) -> None:
            keys = get_typeahead(self)
            at = max((number for number, press in enumerate(keys, 1) if press.key is Names.ControlC), default=0)
            if at:
                interrupt()
            store_typeahead(self, keys[at:])

        def discard(self) -> None:
            self._bursts.drop()
            self.vt100_parser.reset()
            self._buffer = []
            clear_typeahead(self)

    return Keys()


def _bindings() -> "KeyBindings":
    """Key bindings: Enter sends, unless a block is open."""
    from prompt_toolkit.enums import DEFAULT_BUFFER
    from prompt_toolkit.filters import has_focus
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

    @keys.add("c-c", filter=has_focus(DEFAULT_BUFFER))
    def _(event: KeyPressEvent) -> None:
        event.app.exit(exception=Interrupted(bool(event.current_buffer.text)), style="class:aborting")

    return keys


def completions(typed: str, commands: Sequence[str]) -> list[str]:
    """Completions: slash commands with this beginning, and files for commands that take one."""
    if not typed.startswith("/") or "\n" in typed:
        return []
    name, spaced, path = typed.partition(" ")
    if not spaced:
        return [command for command in commands if command.startswith(name)]
    if name.rstrip("!") not in ("/save", "/load", "/file", "/image", "/audio", "/model"):
        return []
    folder, start = os.path.split(path)
    try:
        found = sorted(entry.name + "/" * entry.is_dir() for entry in os.scandir(os.path.expanduser(folder) or "."))
    except OSError:
        return []
    return [f"{name} {os.path.join(folder, entry)}" for entry in found if entry.startswith(start)]


def is_open(text: str) -> bool:
    """True if a message has an unfinished block."""
    text = text.strip()
    return text.startswith(BLOCK) and not (len(text) >= 2 * len(BLOCK) and text.endswith(BLOCK))


def unblocked(text: str) -> str:
    """The message without the marks of a block around it."""
    stripped = text.strip()
    if stripped.startswith(BLOCK) and not is_open(stripped):
        return stripped[len(BLOCK) : -len(BLOCK)].strip("\n")
    return stripped


@contextlib.contextmanager
def source(
    commands: Iterable[str], *, color: bool, interrupt: Callable[[], None], question: str | None = None
) -> Iterator[Source]:
    """The source for this standard input; a question on the command line is the only message.

    `interrupt` handles Ctrl-C where the terminal sends it as a key.
    """
    if question is not None or sys.stdin is None or not sys.stdin.isatty():
        yield Piped(question)
        return
    simple = _is_dumb(os.environ, WINDOWS) or not sys.stdout.isatty()
    with contextlib.ExitStack() as stack:
        if not simple and not WINDOWS:
            stack.enter_context(quiet())
        asks = Dumb() if simple else Editor(commands, history=history_file(), color=color, interrupt=interrupt)
        stack.callback(asks.close)
        yield asks


def _is_dumb(environment: Mapping[str, str], windows: bool) -> bool:
    """True if a terminal cannot move its cursor. Windows consoles can, and do not set TERM."""
    return environment.get("TERM", "" if windows else "dumb") == "dumb"


def history_file() -> Path | None:
    """The file with the message history, readable only by its user; None if it cannot be written.

    The editor reads it completely, so a large one is renamed.
    """
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rwkv-gpu"
    path = folder / "history"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_OWN:
            path.replace(folder / "history.old")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError:
        return None
    return path
