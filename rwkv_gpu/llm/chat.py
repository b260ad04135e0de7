"""A talk with a model: it knows what was said, and a new question costs its new tokens only."""

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from ..errors import BadInput, ContextFull
from ..text.messages import check_messages
from ..text.template import ChatTemplate
from .chat_format import ChatFormat, ChatPrompt, Message
from .completion import TALKING, Completion, Settings, form, sampling
from .generation import AsyncGeneration, Generation, OnPrompt, Reading
from .transcript import Transcript
from .validate import truth

if TYPE_CHECKING:
    from .model import LLM

R = TypeVar("R", bound=Reading)


class Chat:
    """A talk in turns. What is asked is answered by `send`, or event by event by `stream`.

    An answer that is closed early stays as far as it was read; one of which nothing was read was never asked for.
    One answer at a time: the next question cancels one that is still on its way.

    `settings` are those of every answer, `think` asks a template that knows of thoughts for them (True) or for none.
    """

    def __init__(
        self,
        llm: "LLM",
        chat_format: ChatFormat,
        *,
        messages: Sequence[Message] = (),
        think: bool | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._llm = llm
        self._format = chat_format
        self._messages = tuple(messages)
        self._transcript = Transcript()
        self._lock = threading.RLock()
        self._open: weakref.ref[Reading] | None = None
        self._asking: object = None  # the question that is being answered
        self.think = truth("think", think)
        self.settings: Settings = {**TALKING, **(settings or {})}
        sampling(None, {}, self.settings)
        form(self.settings)

    @property
    def messages(self) -> list[dict[str, str]]:
        """What was said, as role and content, and as reasoning where there were thoughts."""
        return [message.as_dict() for message in self._messages]

    @property
    def system(self) -> str | None:
        """What the model was told before all; a new text holds from the next question on."""
        first = self._messages[:1]
        return first[0].content if first and first[0].role == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        self._stop_reading()
        rest = self._messages[self.system is not None :]
        self._messages = (*_checked([{"role": "system", "content": text}] if text is not None else []), *rest)

    @property
    def template(self) -> ChatTemplate:
        """What makes a prompt of the messages."""
        return self._format.template

    @property
    def tokens(self) -> int:
        """How many tokens of the context it fills."""
        return self._asked(self._messages).message_tokens if self._messages else 0

    def send(self, text: str, **settings: Unpack[Settings]) -> Completion:
        """The answer to a question."""
        return self.stream(text, **settings).wait()

    def stream(self, text: str, *, on_prompt: OnPrompt | None = None, **settings: Unpack[Settings]) -> Generation:
        """The answer to a question, event by event."""
        return self._ask(Generation, self._question(text), on_prompt, settings)

    async def asend(self, text: str, **settings: Unpack[Settings]) -> Completion:
        """`send` for asyncio."""
        return await self.astream(text, **settings).wait()

    def astream(self, text: str, *, on_prompt: OnPrompt | None = None, **settings: Unpack[Settings]) -> AsyncGeneration:
        """`stream` for asyncio: `async for event in chat.astream("hi")`."""
        return self._ask(AsyncGeneration, self._question(text), on_prompt, settings)

    def regenerate(self, *, on_prompt: OnPrompt | None = None, **settings: Unpack[Settings]) -> Generation:
        """Another answer to the last question, in place of the one it had."""
        self._stop_reading()
        return self._ask(Generation, self._messages[: self._last_question() + 1], on_prompt, settings)

    def edit(self, text: str, *, on_prompt: OnPrompt | None = None, **settings: Unpack[Settings]) -> Generation:
        """Asks this in place of the last question."""
        self._stop_reading()
        asked = (*self._messages[: self._last_question()], *_checked([{"role": "user", "content": text}]))
        return self._ask(Generation, asked, on_prompt, settings)

    def undo(self) -> None:
        """Drops the last question and its answer."""
        self._stop_reading()
        self._messages = self._messages[: self._last_question()]

    def reset(self) -> None:
        """Drops all but the system's message."""
        self._stop_reading()
        self._messages = self._messages[: self.system is not None]

    def fork(self) -> "Chat":
        """A talk of its own that begins with this one."""
        self._stop_reading()
        settings: Settings = {**self.settings}
        other = Chat(self._llm, self._format, messages=self._messages, think=self.think, settings=settings)
        other._transcript = self._transcript
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the talk and the model's state to a file, for `llm.load_chat`; the old file stays where that fails."""
        from .session import save

        self._stop_reading()
        save(path, self, self._llm)

    def _question(self, text: str) -> tuple[Message, ...]:
        self._stop_reading()
        return (*self._messages, *_checked([{"role": "user", "content": text}]))

    def _last_question(self) -> int:
        """Where it stands among the messages."""
        for at in range(len(self._messages) - 1, -1, -1):
            if self._messages[at].role == "user":
                return at
        raise BadInput("the chat has no question yet; ask one first")

    def _asked(self, messages: Sequence[Message]) -> ChatPrompt:
        return self._format.prompt([message.for_template() for message in messages], [self._transcript], self.think)

    def _ask(
        self, reading: type[R], messages: tuple[Message, ...], on_prompt: OnPrompt | None, settings: Mapping[str, Any]
    ) -> R:
        """Has the messages answered; they are the chat's own from here on, unless the answer is never begun."""
        params, shape = sampling(None, self.settings, settings), form({**self.settings, **settings})
        asked = self._asked(messages)
        self._check_room(len(asked.transcript.ids))
        reader, request = self._format.reader(asked, params, shape), self._format.request(asked, params, shape)
        before, this = (self._messages, self._transcript), object()

        def record(completion: Completion) -> None:
            with self._lock:
                if self._asking is not this:
                    return
                self._asking = None
                if not completion.tokens and completion.finish_reason in ("abort", "error"):
                    self._messages, self._transcript = before
                    return
                answer, self._transcript = asked.answer(self._format.tokenizer, completion, reader.stopped)
                self._messages = (*messages, answer)

        with self._lock:
            self._asking = this
            answer = self._llm._read(reading, request, reader, on_prompt=on_prompt, on_end=record)
            self._messages, self._transcript = messages, asked.transcript
            self._open = weakref.ref(answer)
        return answer

    def _stop_reading(self) -> None:
        """Cancels an answer that is on its way, so that what was read of it counts."""
        running = self._open() if self._open else None
        if running is not None:
            running.close()
        self._open = None

    def _check_room(self, tokens: int) -> None:
        context = self._llm.context
        if context is not None and tokens >= context:
            raise ContextFull(
                f"the chat has come to {tokens:,} tokens and leaves no room for an answer in the context of "
                f"{context:,}; undo or reset it, ask something shorter, or load the model with a larger context"
            )


def messages_of(messages: Sequence[Mapping[str, object]]) -> tuple[Message, ...]:
    """Messages as they are kept; none is fine."""
    return _checked(messages) if messages else ()


def _checked(messages: Sequence[Mapping[str, object]]) -> tuple[Message, ...]:
    if not messages:
        return ()
    checked = check_messages(messages)
    return tuple(Message(m["role"], m["content"] or "", str(m.get("reasoning") or "")) for m in checked)
