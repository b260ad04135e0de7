"""Methods about chats: one chat, many conversations, chat templates."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack, overload

from ..engine.request import Request
from ..errors import BadInput
from ..text.template import ChatTemplate
from . import validate
from .batches import await_all, wait_all
from .chat import Chat, Truncate, load_chats, messages_of
from .chat_format import ChatPrompt
from .completion import CHAT_DEFAULTS, Completion, Settings, form, sampling
from .generation import AsyncGeneration, Generation, Reading, waits
from .images import Source, recording_of, spans_of
from .open_model import Messages, OpenModel, TemplateIds, TemplateText
from .transcription import transcription_message

R = TypeVar("R", bound=Reading)


class ChatMethods(OpenModel):
    """`chat`, `load_chat`, `chat_batch` and `apply_chat_template`."""

    def chat(
        self,
        system: str | None = None,
        *,
        template: str | ChatTemplate | None = None,
        think: bool | None = None,
        truncate: Truncate | None = None,
        messages: Sequence[Mapping[str, object]] = (),
        **settings: Unpack[Settings],
    ) -> Chat:
        """Starts a chat, optionally with a system prompt, or continues from `messages`.

        `template` is the name of a built-in template or a jinja2 source; the default is the model's own. `think` turns
        reasoning on (True) or off (False) in templates that can switch it. A chat that no longer fits the context is
        refused; with `truncate="left"`, its oldest turns are left out. `settings` apply to every answer.
        """
        if system is not None and not isinstance(system, str):
            raise BadInput(
                f"system is of type {type(system).__name__}; it must be a string. chat(messages=...) continues from "
                "messages, and chat_batch answers a list of conversations"
            )
        begun = messages_of(self._begun(system, messages), self.media_input)
        defaults: Settings = {**self.default_settings(Settings()), **settings}
        return Chat(
            self, self.chat_format_of(template), messages=begun, think=think, truncate=truncate, settings=defaults
        )

    def _begun(self, system: str | None, messages: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
        """The messages that a chat begins with, and its system prompt; without one, those of the preset."""
        if system is not None:
            return [{"role": "system", "content": system}, *messages]
        if self.preset is None:
            return messages
        if messages:
            return self.preset.before(messages)  # type: ignore[no-any-return]
        return self.preset.before([{"role": "user", "content": ""}])[:-1]  # type: ignore[no-any-return]

    def load_chat(self, path: str | os.PathLike[str]) -> Chat:
        """Loads a chat written by `chat.save`; from a session with several branches, the current one."""
        chats, current = load_chats(path, self)
        return chats[current]

    def chat_batch(
        self,
        conversations: Sequence[Messages],
        *,
        think: bool | None = None,
        progress: Callable[[int, int], None] | None = None,
        **settings: Unpack[Settings],
    ) -> list[Completion]:
        """Answers each of many lists of messages, with as many in parallel as the model was loaded for."""
        validate.called("progress", progress)
        prompts, start = self._replies(Generation, conversations, think, settings)
        return wait_all(start, prompts, self.info.sequences, progress)

    async def achat_batch(
        self, conversations: Sequence[Messages], *, think: bool | None = None, **settings: Unpack[Settings]
    ) -> list[Completion]:
        """`chat_batch` for asyncio."""
        prompts, start = self._replies(AsyncGeneration, conversations, think, settings)
        return await await_all(start, prompts, self.info.sequences)

    def _replies(
        self, reading: type[R], conversations: Sequence[Messages], think: bool | None, settings: Mapping[str, Any]
    ) -> tuple[list[ChatPrompt], Callable[[ChatPrompt], R]]:
        """Checks everything before starting anything.

        Returns the prompts, and a function that starts the answer to one.
        """
        params, shape = sampling(None, self.default_settings(CHAT_DEFAULTS), settings), form(settings)
        params.check_vocabulary(self.vocab_size)
        many = validate.several("conversations", conversations, "lists of messages")
        if self.preset is not None:
            many = [self.preset.before(messages) for messages in many]
        prompts = [self.chat_format.prompt(messages, think=think) for messages in many]
        for prompt in prompts:
            ids = prompt.transcript.ids
            Request(ids, images=spans_of(ids, prompt.images)).check(self.vocab_size, self.context)

        def start(prompt: ChatPrompt) -> R:
            request = self.chat_format.request(prompt, params, shape, wait=waits(reading))
            return self._read(reading, request, self.chat_format.reader(prompt, params, shape), max_unread=None)

        return prompts, start

    def transcribe(
        self, audio: Source, *, prompt: str = "", language: str = "", **settings: Unpack[Settings]
    ) -> Completion:
        """The text of a sound: a path, the bytes of a file, or mono samples at 16 kHz.

        `prompt` replaces the question "Transcribe audio to text"; `language` is added to it.
        """
        message = transcription_message(recording_of(audio), prompt, language)
        defaults: Settings = {"temperature": 0.0, **settings}
        return self.chat(messages=[message]).regenerate(**defaults).wait()

    @overload
    def apply_chat_template(
        self, messages: Messages, *, tokenize: Literal[True] = True, **variables: Any
    ) -> list[int]: ...
    @overload
    def apply_chat_template(self, messages: Messages, *, tokenize: Literal[False], **variables: Any) -> str: ...
    def apply_chat_template(
        self,
        messages: Messages,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **variables: Any,
    ) -> list[int] | str:
        """Applies the chat template to messages; returns the prompt's token ids, or its text.

        `variables` are passed to the template, such as enable_thinking. `generate` and similar methods end the answer
        to such a prompt at the end of the turn, as `chat` does.
        """
        as_ids = validate.truth("tokenize", tokenize)
        text = self.chat_format.template.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, **variables
        )
        return TemplateIds(self.tokenizer.encode(text, parse=True)) if as_ids else TemplateText(text)
