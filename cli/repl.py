"""A chat at a terminal, or through a pipe: asks for messages, shows answers, obeys slash commands and signals."""

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rwkv_gpu import LLM, Chat, Completion, Event, Generation, RwkvGpuError
from rwkv_gpu.errors import DeviceError
from rwkv_gpu.llm.completion import TALKING
from rwkv_gpu.llm.completion import sampling as checked

from . import sampling, slash
from .bars import prompt_bar
from .keyboard import Source
from .screen import Screen
from .signals import Signals
from .truncation import truncation

GRACE = {signal.SIGINT: 0.7}  # seconds to save what was said; of other signals 5
SHOWN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "max_tokens")


@dataclass
class Totals:
    """What all answers took."""

    answers: int = 0
    prompt: int = 0
    reused: int = 0
    new: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0

    def add(self, done: Completion) -> None:
        """One answer more."""
        self.answers += 1
        self.prompt += done.stats.prompt_tokens
        self.reused += done.stats.reused_tokens
        self.new += done.stats.new_tokens
        self.prompt_seconds += done.stats.prompt_seconds
        self.decode_seconds += done.stats.decode_seconds


@dataclass
class Repl:
    """Its parts, and where it stands."""

    llm: LLM
    screen: Screen
    source: Source
    signals: Signals
    branches: list[Chat]
    interactive: bool
    session: str | None = None
    shows_stats: bool = True
    at: int = 0
    code: int = 0  # what the command ends with
    took: Totals = field(default_factory=Totals)
    _answer: Generation | None = None
    _stopping: bool = False
    _warned: bool = False

    @property
    def chat(self) -> Chat:
        """The branch that goes on."""
        return self.branches[self.at]

    def run(self) -> int:
        """Until the user leaves, or the pipe is empty: the exit code."""
        try:
            while self.code == 0:
                self._turn()
        except (slash.Leave, EOFError):
            pass
        return self.code

    def _turn(self) -> None:
        try:
            if self.interactive:
                self.screen.note("")
            text = self.source.ask(self._mark())
        except KeyboardInterrupt:
            if self._warned:
                self.code = 130
            else:
                self.screen.note("Ctrl-C again leaves, as do Ctrl-D and /exit")
            self._warned = True
            return
        self._warned = False
        if not text.strip():
            return
        try:
            self._obey(text)
            self._keep()
        except RwkvGpuError as error:
            if not self.interactive or isinstance(error, DeviceError):
                raise
            self.screen.error(error)
        except (KeyboardInterrupt, EOFError):
            self.screen.note("left as it was")

    def _mark(self) -> str:
        return f"{self.at + 1}> " if len(self.branches) > 1 else "> "

    def _obey(self, text: str) -> None:
        """A command, or a question."""
        command = slash.parsed(text) if self.interactive else None
        if command is not None:
            slash.run(self, *command)
            return
        if self.interactive and text.startswith("//"):
            text = text[1:]
        self.answer(lambda **how: self.chat.stream(text, **how))

    # ------------------------------------------------------------ answers

    def answer(self, ask: Callable[..., Generation]) -> None:
        """Shows an answer as it comes, until its end or a signal."""
        self._stopping, self._answer = False, None
        self.signals.on_signal = self._stop
        try:
            self._told(self._shown(ask))
        finally:
            self._answer = None
            if not self.code:
                self.signals.on_signal = self.signals.leave

    def _shown(self, ask: Callable[..., Generation]) -> Completion:
        view = self.screen.view()
        try:
            with prompt_bar(self.screen) as bar:
                generation = self._answer = ask(on_prompt=bar.update)
                if self._stopping:
                    generation.close()
                for event in generation:
                    bar.close()
                    view.feed(event)
        finally:
            view.end()
        return generation.completion

    def _stop(self, number: int) -> None:
        """A signal while an answer comes. Called by the thread of signals."""
        leaves = not self.interactive or number != signal.SIGINT
        if self._stopping and not leaves:
            self.signals.leave(number)
        if leaves:
            self.code = 128 + number
            timer = threading.Timer(GRACE.get(signal.Signals(number), 5.0), self.signals.leave, [number])
            timer.daemon = True
            timer.start()
        self._stopping = True
        if self._answer is not None:
            self._answer.close()

    def _told(self, done: Completion) -> None:
        self.took.add(done)
        self._warned = done.finish_reason == "abort"
        if self._warned and self.interactive:
            self.screen.note("stopped; Ctrl-C again leaves")
        elif self.interactive and self.shows_stats:
            self.screen.note(stats_line(done, self.chat.settings.get("max_tokens", 0)))
        elif not self.interactive:
            settings: dict[str, Any] = {**TALKING, **self.chat.settings}
            if (cut := truncation(done, settings["max_tokens"], settings)) is not None:
                self.screen.note(f"rwkv-gpu: {cut}")

    def _keep(self) -> None:
        """The session's file is what was said, after every turn."""
        if self.session is not None:
            self.chat.save(self.session)

    # ------------------------------------------------------------ what commands need

    def last_question(self) -> str | None:
        """What was asked last."""
        return next((m["content"] for m in reversed(self.chat.messages) if m["role"] == "user"), None)

    def replace(self, chat: Chat) -> None:
        """Another chat takes the place of this one."""
        self.branches[self.at] = chat

    def show_last(self) -> None:
        """The last question and its answer, so that one knows where one is."""
        for message in self.chat.messages[-2:]:
            if message["role"] == "assistant":
                view = self.screen.view()
                view.feed(Event(message["content"], None, 0.0))
                view.end()
            elif message["role"] == "user":
                self.screen.note(f"> {message['content']}", "bold")

    def set_value(self, name: str, value: str) -> None:
        """Changes a setting of this chat; without a value, or with `default`, takes it back."""
        name = sampling.field_of(name)
        changed: dict[str, Any] = {**self.chat.settings}
        if value in ("", "default", "none"):
            changed.pop(name, None)
        else:
            changed[name] = sampling.parsed(name, value)
        params = checked(None, {}, changed)
        self.chat.settings = changed  # type: ignore[assignment]
        self.screen.note(f"{name} {getattr(params, name)}")

    def settings(self) -> list[str]:
        """The settings that matter, and those that were set."""
        params = checked(None, {}, self.chat.settings)
        names = dict.fromkeys((*SHOWN, *self.chat.settings))
        shown = [f"{name} {getattr(params, name, self.chat.settings.get(name))}" for name in names]
        others = ", ".join(name for name in sampling.SETTINGS if name not in names)
        return [*shown, f"also: {others}"]

    def totals(self) -> list[str]:
        """What the chat took so far."""
        took, used, context = self.took, self.chat.tokens, self.llm.context
        computed = took.prompt - took.reused
        return [
            f"context  {used:,} tokens" + (f" of {context:,}" if context else ", no limit"),
            f"answers  {took.answers:,}, of {took.new:,} tokens" + _rate(took.new, took.decode_seconds),
            f"prompts  {took.prompt:,} tokens, {took.reused:,} of them reused" + _rate(computed, took.prompt_seconds),
        ]


def stats_line(done: Completion, most: int) -> str:
    """prompt 412 tok/s · reused 8,120 of 8,164 · answer 212 tokens at 52.3 tok/s"""
    stats = done.stats
    parts = [f"prompt {stats.prompt_tokens:,} tokens at {stats.prompt_rate:,.0f} tok/s"]
    if stats.reused_tokens:
        parts = [f"prompt {stats.prompt_rate:,.0f} tok/s", f"reused {stats.reused_tokens:,} of {stats.prompt_tokens:,}"]
    parts.append(f"answer {stats.new_tokens:,} tokens at {stats.decode_rate:,.1f} tok/s")
    if done.finish_reason == "length":
        parts.append(f"cut at max_tokens {most:,}" if stats.new_tokens >= most else "cut: the context is full")
    return " · ".join(parts)


def _rate(tokens: int, seconds: float) -> str:
    return f", {tokens / seconds:,.1f} tok/s" if seconds else ""
