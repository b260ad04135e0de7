"""The loop of a chat: reads messages, shows answers, runs slash commands, and handles signals."""

import signal
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rwkv_gpu import Completion, ContextFull, Event, Generation, RwkvGpuError
from rwkv_gpu.errors import DeviceError
from rwkv_gpu.llm.tools import Calling

from . import slash
from .bars import prompt_bar
from .chat_stats import answer_line, truncation
from .conversation import Ask, Conversation
from .keyboard import Interrupted
from .signals import Signals

GRACE = {signal.SIGINT: 0.7}  # by signal: seconds until the process ends if nothing is to be saved; the default is 5
SAVING = 30.0  # seconds to save the chat: a state may be large, and the disk slow
MAX_ROUNDS = 50  # maximum rounds of calls after a question
LEAVES = ("exit", "quit")  # messages that end a chat, as in other programs
FULL = (
    "/undo removes the last question, /reset clears the chat, --context with a larger number gives more room, "
    "and --context-shift leaves out the oldest turns"
)


def grace(number: int, *, saves: bool) -> float:
    """Maximum seconds from a signal to the end of the process."""
    seconds = GRACE.get(signal.Signals(number), 5.0)
    return max(seconds, SAVING) if saves else seconds


def without_calls(event: Event, calling: Calling) -> Event:
    """An event without text that may belong to a tool call."""
    return event if event.thinking else replace(event, text=text_of(calling.feed(event.text)))


def text_of(deltas: Iterable[Mapping[str, Any]]) -> str:
    """The text of parts of an answer."""
    return "".join(delta.get("content", "") for delta in deltas)


@dataclass
class Repl:
    """Reads messages and shows answers until the user leaves. If not `interactive`, there is one question."""

    conversation: Conversation
    signals: Signals
    interactive: bool
    code: int = 0  # exit code of the command
    _answer: Generation | None = None
    _stopping: bool = False
    _warned: bool = False  # whether the next Ctrl-C or Ctrl-D leaves

    def __post_init__(self) -> None:
        self.screen = self.conversation.screen
        self.source = self.conversation.source

    def run(self) -> int:
        """Runs until the user leaves, or the pipe is empty; returns the exit code."""
        left = False
        while self.code == 0 and not left:
            try:
                self._turn()
            except (slash.Leave, EOFError):
                left = self._may_leave()
        return self.code

    def _turn(self) -> None:
        try:
            if self.interactive:
                self.screen.note("")
            text = self.source.ask(self._mark())
        except KeyboardInterrupt as interrupt:
            self._interrupted(draft=isinstance(interrupt, Interrupted) and interrupt.draft)
            return
        self._warned = False
        if not text.strip():
            return
        try:
            ask = self._understood(text)
            if ask is not None:
                self.answer(ask)
            self.conversation.keep()
        except RwkvGpuError as error:
            if not self.interactive or isinstance(error, DeviceError):
                raise
            full = f"{str(error).partition(';')[0]}; {FULL}"  # the remedies in the error are for the library
            self.screen.error(full if isinstance(error, ContextFull) else error)
        except slash.Leave:
            raise
        except (KeyboardInterrupt, EOFError):
            self.screen.note("left as it was")

    def _interrupted(self, *, draft: bool) -> None:
        """Handles Ctrl-C at the prompt: clears the input; with no input, the second one leaves."""
        if self._warned and not draft:
            self.code = 130
        else:
            self.screen.note("Ctrl-C again leaves, as do Ctrl-D and /exit")
        self._warned = True

    def _may_leave(self) -> bool:
        """True if everything is saved, or the user has been warned that it cannot be."""
        try:
            self.conversation.keep()
        except RwkvGpuError as error:
            if not self.interactive or self._warned:
                raise
            self.screen.error(f"{error}; /save FILE saves this chat elsewhere, Ctrl-D again leaves without saving")
            self._warned = True
            return False
        return True

    def _mark(self) -> str:
        branches = self.conversation.branches
        return f"{self.conversation.at + 1}> " if len(branches) > 1 else "> "

    def _understood(self, text: str) -> Ask | None:
        """Returns the question to answer, which may come from a command; None if a command needs no answer."""
        if self.interactive and text.strip().lower() in LEAVES:
            raise slash.Leave
        command = slash.parsed(text) if self.interactive else None
        if command is not None:
            return slash.run(self.conversation, *command)
        if self.interactive:
            text = slash.take_media(self.conversation, text[1:] if text.startswith("//") else text)
        return self.conversation.ask(text) if text else None

    # ------------------------------------------------------------ answers

    def answer(self, ask: Ask) -> None:
        """Shows an answer while it is generated, until it ends or a signal arrives."""
        self._stopping, self._answer = False, None
        self.signals.on_signal = self._stop
        try:
            done = self._show(ask)
            self._finish(done)
            self._run_tools(done)
        except OSError:  # the terminal was closed, or the reader of the pipe has ended
            self._keep_shown()
            if not self.code:
                raise
        finally:
            self._answer = None
            if not self.code:
                self.signals.on_signal = self.signals.leave

    def _run_tools(self, done: Completion) -> None:
        """Runs the calls of an answer, and continues with their results until an answer has no calls."""
        conversation = self.conversation
        for _ in range(MAX_ROUNDS):
            calls = conversation.chat.calls
            if conversation.tools is None or not calls or self._stopping or done.finish_reason != "stop":
                return
            try:
                results = conversation.tools.results(calls, lambda: self._stopping)
            except KeyboardInterrupt:
                self._warned = True
                self.screen.note("stopped; Ctrl-C again leaves")
                return
            done = self._show(partial(conversation.chat.answer_calls, results))
            self._finish(done)
        self.screen.note(f"stopped after {MAX_ROUNDS} rounds of calls; any message continues")

    def _show(self, ask: Ask) -> Completion:
        view, calling = self.screen.view(), self.conversation.chat.splitter()
        try:
            with prompt_bar(self.screen) as bar:
                generation = self._answer = ask(on_prompt=bar.update)
                if self._stopping:
                    generation.close()
                for event in generation:
                    bar.close()
                    view.feed(event if calling is None else without_calls(event, calling))
            if calling is not None:
                view.feed(Event(text_of(calling.flush()), None, 0.0))
        finally:
            view.end()
        return generation.completion

    def _keep_shown(self) -> None:
        """Saves the part of an answer that was shown, after the output was closed."""
        if self._answer is not None:
            self._answer.close()
        self.conversation.keep()

    def _stop(self, number: int) -> None:
        """Handles a signal during an answer. Called on the signal thread."""
        leaves = not self.interactive or number != signal.SIGINT
        if self._stopping and not leaves:
            self.signals.leave(number)
        if leaves:
            self.code = 128 + number
            seconds = grace(number, saves=self.conversation.session is not None)
            timer = threading.Timer(seconds, self.signals.leave, [number])
            timer.daemon = True
            timer.start()
        self.source.discard()  # before the note: input typed after "stopped" must be kept
        self._stopping = True
        if self._answer is not None:
            self._answer.close()

    def _finish(self, done: Completion) -> None:
        """Counts an answer, and reports how it ended."""
        conversation = self.conversation
        conversation.totals.add(done)
        settings = conversation.chat.settings
        most = settings.get("max_tokens", 0)
        if not self.interactive:
            if (cut := truncation(done, most, settings)) is not None:
                self.screen.note(f"rwkv-gpu: {cut}")
            if conversation.shows_stats:
                self.screen.note(answer_line(done, most))
            return
        if done.finish_reason == "abort":
            self._warned = True
            self.screen.note("stopped; Ctrl-C again leaves")
        elif conversation.shows_stats:
            self.screen.note(answer_line(done, most))
        if done.finish_reason == "length" and done.stats.new_tokens < most:
            self.screen.note(f"cut: the context of {conversation.llm.context:,} tokens is full; {FULL}", "yellow")
