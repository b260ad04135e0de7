"""The state of a chat in a terminal: its branches, session file, settings and totals."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rwkv_gpu import LLM, Chat, Event, Generation
from rwkv_gpu.errors import BadFile, BadInput, is_count
from rwkv_gpu.llm.completion import Settings
from rwkv_gpu.llm.completion import sampling as checked
from rwkv_gpu.llm.images import NO_PROJECTOR, Image

from . import sampling
from .attachment import file_text, message_part
from .chat_model import ChatModel, with_model
from .chat_stats import Totals, context_line
from .chat_tools import ChatTools
from .keyboard import Source
from .model_name import is_short, looks_like_model
from .screen import Screen
from .session_file import SessionFile, expanded

SHOWN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "max_tokens")

Ask = Callable[..., Generation]  # starts an answer; takes on_prompt


@dataclass
class Conversation:
    """The parts of a chat, and the index of the current branch."""

    llm: LLM
    screen: Screen
    source: Source
    branches: list[Chat]
    at: int = 0
    session: SessionFile | None = None
    defaults: Settings = field(default_factory=lambda: Settings())
    half_state: bool = False  # saves states in float16
    shows_stats: bool = True
    totals: Totals = field(default_factory=Totals)
    model: ChatModel | None = None  # None in a chat that keeps its model
    tools: ChatTools | None = None

    images: list[Image] = field(default_factory=list)  # images of the next message
    files: list[str] = field(default_factory=list)  # files of the next message, as parts of its text

    def __post_init__(self) -> None:
        self._give_tools()
        self._kept = self._content()
        self._copies: set[str] = set()  # other files to which this chat was written
        self._created = self.session is not None and not self.session.exists
        if self._created:
            self._save()

    def _give_tools(self) -> None:
        if self.tools is not None:
            for chat in self.branches:
                chat.tools = self.tools.as_dicts()

    @property
    def chat(self) -> Chat:
        """The current branch."""
        return self.branches[self.at]

    # ------------------------------------------------------------ files

    @property
    def unsaved(self) -> bool:
        """True if there are messages or settings that are not in any file."""
        return self._content() != self._kept

    def keep(self) -> None:
        """Writes the session file if anything has changed."""
        if self.session is not None and self.unsaved:
            self._save()

    def save(self, name: str, *, replace: bool = False) -> None:
        """Writes the chat to a file. From now on it is saved there, unless it already has another session file."""
        if self.session is not None and (not name or self.session.is_at(expanded(name))):
            self._save()
            self.screen.note(f"saved to {self.session.name}")
            return
        if not name:
            raise BadInput("give a file: /save my.chat")
        real = os.path.realpath(expanded(name))
        if os.path.exists(real) and not replace and real not in self._copies:
            raise BadInput(f"{name} exists, and this chat has not opened it; /save! {name} replaces it")
        file = SessionFile(name, half_state=self.half_state)
        try:
            file.save(self.branches, self.at)
        except BaseException:
            file.close()
            raise
        if self.session is None:
            self.session, self._kept = file, self._content()
            self.screen.note(f"saved to {name}, as every turn from now on; --session {name} continues from here")
        else:
            file.close()
            self._copies.add(real)
            self.screen.note(f"copied to {name}; this chat is still saved to {self.session.name}")

    def load(self, name: str, *, drop: bool = False) -> None:
        """Continues the chat in another file, and saves there from now on. The old file stays unchanged."""
        if not name:
            raise BadInput("give a file: /load my.chat")
        if self.session is None and self.unsaved and not drop:
            raise BadInput(f"this chat is not saved; /save FILE saves it, /load! {name} drops it")
        self.keep()
        again = self.session is not None and self.session.is_at(expanded(name))
        file = self.session if again and self.session is not None else SessionFile(name, half_state=self.half_state)
        try:
            if not file.exists:
                meant = f"; /model {name} continues with that model" if is_short(name) or looks_like_model(name) else ""
                raise BadFile(f"{name}: No such file{meant}")
            branches, at = file.load(self.llm)
        except BaseException:
            if not again:
                file.close()
            raise
        if self.session is not None and not again:
            self.close()
        self.session, self.branches, self.at = file, branches, at
        self._give_tools()
        self._created, self._copies, self._kept = False, set(), self._content()
        self.screen.note(f"loaded {name}: {len(self.chat.messages)} messages, {self.chat.tokens:,} tokens")
        self.show_last()

    def close(self) -> None:
        """Unlocks the file. Deletes it if it was created for a chat without messages."""
        if self.session is None:
            return
        if self._created and not any(chat.messages for chat in self.branches):
            self.session.remove()
        self.session.close()

    def _save(self) -> None:
        assert self.session is not None
        self.session.save(self.branches, self.at)
        self._kept = self._content()

    def _content(self) -> object:
        """The contents of a session file, for detecting changes. It belongs to a model."""
        chats = [([*chat.messages], {**chat.settings}, chat.think, chat.template.source) for chat in self.branches]
        return self.at, chats, None if self.model is None else self.model.path

    # ------------------------------------------------------------ branches

    def fork(self) -> None:
        """Continues in a copy of this branch."""
        self.branches.append(self.chat.fork())
        self.at = len(self.branches) - 1

    def switch(self, number: str) -> None:
        """Continues in another branch; numbers start at 1."""
        if not is_count(number) or not 1 <= int(number) <= len(self.branches):
            there = (
                f"the branches are 1 to {len(self.branches)}" if len(self.branches) > 1 else "there is only this one"
            )
            raise BadInput(f"there is no branch {number}; {there}, and /fork alone makes another")
        self.at = int(number) - 1

    # ------------------------------------------------------------ messages

    def add_image(self, source: Path | bytes) -> Image:
        """Adds an image or audio to the next message."""
        if self.llm.media_input is None:
            raise BadInput(NO_PROJECTOR)
        image = self.llm.media_input.keeping.image(source)
        self.images.append(image)
        return image

    def add_file(self, name: str) -> int:
        """Adds the text of a file to the next message; returns its number of tokens."""
        path = expanded(name)
        part = message_part(path.name, file_text(path))
        count, context = len(self.llm.tokenize(part)), self.llm.context
        if context is not None and count >= context:
            raise BadInput(f"{name} has {count:,} tokens, and the context {context:,}; a larger --context may fit it")
        self.files.append(part)
        return count

    def ask(self, text: str) -> Ask:
        """A question with the images and files that were added for it."""
        images, self.images = self.images, []
        text, self.files = "".join((*self.files, text)), []
        return lambda **how: self.chat.stream(text, images=images, **how)

    def last_question(self) -> str | None:
        """The user's last message."""
        return next((m["content"] for m in reversed(self.chat.messages) if m["role"] == "user"), None)

    def last_answer(self) -> str | None:
        """The model's last message."""
        return next((m["content"] for m in reversed(self.chat.messages) if m["role"] == "assistant"), None)

    def show_last(self, count: int = 2) -> None:
        """Shows the last messages, for orientation."""
        messages = self.chat.messages
        for at, message in list(enumerate(messages))[max(0, len(messages) - count) :]:
            if message["role"] == "assistant":
                view = self.screen.view()
                view.feed(Event(message["content"], None, 0.0))
                view.end()
            else:
                mark = "> " if message["role"] == "user" else f"{message['role']}: "
                media = "".join(f"[{kind}] " for kind in self.chat.media(at))
                self.screen.note(mark + media + message["content"], "bold")

    def change_model(self, name: str) -> bool:
        """Continues with another model, which reads the chat again; False if it is the same one."""
        if self.model is None:
            raise BadInput("the model of this chat cannot be changed")
        before, system = self.model.defaults, self.model.system
        try:
            own = any(chat.has_own_template for chat in self.branches)
            changed = self.model.change(name, lambda question, _: self._agrees(question), own_template=own)
        finally:
            if self.model.llm is not self.llm:
                self._go_on_with(self.model, before, system)
        return changed

    def _agrees(self, question: str) -> bool:
        if self.source.choose(f"{question} [Y/n] ") in ("", "y", "yes"):
            return True
        raise BadInput("nothing was downloaded; the model is unchanged")

    def _go_on_with(self, model: ChatModel, before: Settings, system: str | None) -> None:
        self.llm, self.defaults = model.llm, model.defaults
        self.branches = [with_model(chat, model, before, system) for chat in self.branches]
        self.images = [] if self.llm.media_input is None else [*map(self.llm.media_input.again, self.images)]
        if self.session is not None:
            self.llm.model_file.start()

    # ------------------------------------------------------------ settings

    def set_value(self, name: str, value: str) -> None:
        """Changes a setting of this branch; `default`, or no value, restores the chat's default."""
        if name == "num_ctx":  # ollama's
            raise BadInput("the context is fixed at loading; start the chat with --context, or `rwkv-gpu create`")
        name = sampling.field_of(name)
        changed: dict[str, Any] = {**self.chat.settings}
        if value.lower() in ("", "default", "none"):
            changed.pop(name, None)
            changed |= {name: self.defaults[name]} if name in self.defaults else {}  # type: ignore[literal-required]
        else:
            changed[name] = sampling.parsed(name, value)
        checked(None, {}, changed)
        self.chat.settings = changed  # type: ignore[assignment]
        self.screen.note(self._setting(name))

    def settings(self) -> list[str]:
        """The most common settings, those that were changed, and the names of the others."""
        names = dict.fromkeys((*SHOWN, *self.chat.settings))
        others = ", ".join(name for name in sampling.SETTINGS if name not in names)
        return [*map(self._setting, names), f"others: {others}"]

    def _setting(self, name: str) -> str:
        """A setting with its value, such as `seed random`."""
        params = checked(None, {}, self.chat.settings)
        value = getattr(params, name, self.chat.settings.get(name))
        if value is None:
            value = "random" if name == "seed" else "none"
        return f"{name} {value}" if value != () else f"{name} none"

    def stats(self) -> list[str]:
        """The lines of /stats."""
        info = self.llm.info
        return [context_line(self.chat.tokens, self.llm.context, info.trained_context), *self.totals.lines()]
