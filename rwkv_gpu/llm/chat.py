"""A conversation with a model, in turns. A new question costs only its new tokens."""

import math
import os
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, overload

from ..engine.cache.prefix_index import key_of, shared
from ..errors import BadFile, BadGrammar, BadInput, BadTemplate, CacheFull, ContextFull
from ..text.messages import check_messages, joined
from ..text.template import ChatTemplate
from ..vision.samples import Recording
from ..writer_lock import WriterLock
from . import session
from .backend import Backend
from .batches import await_all, wait_all
from .chat_completion import answers
from .chat_format import ChatFormat, ChatPrompt, Message
from .completion import CHAT_DEFAULTS, Completion, Settings, form, own_names, sampling, seeded
from .generation import AsyncGeneration, Generation, OnPrompt, Reading, waits
from .images import MediaInput, Source, marked, marks_in, recording_of
from .session import SavedChat, SavedSession
from .tools import Calling, Tools
from .transcript import Transcript
from .validate import one_of, several, truth

R = TypeVar("R", bound=Reading)
NOT_CALLED = "error: the user did not allow this call, or interrupted it"  # the result of such a call
OF_A_MODEL = ("logit_bias", "stop_ids", "lora")  # settings with token ids or adapters of one model
Truncate = Literal["left"]


class Question(Settings, total=False):
    """Keyword arguments of a question: settings of its answer, images and sounds."""

    images: Sequence[Source]
    audio: Sequence[Source]


class Chat:
    """A conversation. `send` answers a question, `stream` yields the answer event by event.

    An answer that is closed early is kept as far as it was read. If nothing was read, its question is dropped. There is
    one answer at a time: a new question cancels an answer that is still being generated.

    `settings` apply to every answer. `think` turns reasoning on (True) or off (False) in templates that can switch it.
    A chat that no longer fits the context is refused; with `truncate="left"`, prompts leave out its oldest turns.
    """

    def __init__(
        self,
        llm: Backend,
        chat_format: ChatFormat,
        *,
        messages: Sequence[Message] = (),
        think: bool | None = None,
        truncate: Truncate | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._llm = llm
        self._format = chat_format
        self._messages = tuple(messages)
        self._transcript = Transcript()
        self._lock = threading.RLock()
        self._open: weakref.ref[Reading] | None = None
        self._asking: object = None  # the question being answered
        self._first = 0  # index of the first message in prompts, after the system prompt
        self._tools: Tools | None = None
        self.think = truth("think", think)
        """True or False switches reasoning on or off; None leaves it to the chat template."""
        self.truncate = one_of("truncate", truncate, "left")
        """`left` if prompts leave out the oldest turns when the context is full."""
        self.settings: Settings = {**CHAT_DEFAULTS, **own_names(settings or {})}  # type: ignore[typeddict-item]
        """Settings of every later answer."""
        sampling(None, {}, self.settings)
        form(self.settings)

    def __repr__(self) -> str:
        """Number of messages."""
        count = len(self._messages)
        return f"<Chat: {count} message{'' if count == 1 else 's'}>"

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, with role, content and, if present, reasoning."""
        return [message.as_dict() for message in self._messages]

    @property
    def system(self) -> str | None:
        """The system prompt. A new one applies from the next question on."""
        first = self._messages[:1]
        return first[0].content if first and first[0].role == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        self._stop_reading()
        rest = self._messages[self.system is not None :]
        self._messages = (*_checked([{"role": "system", "content": text}] if text is not None else []), *rest)

    @property
    def template(self) -> ChatTemplate:
        """The chat template."""
        return self._format.template

    @property
    def has_own_template(self) -> bool:
        """True if the chat template is the model's own."""
        try:
            return self.template.source == self._llm.chat_format.template.source
        except (BadInput, BadTemplate):  # the model has none
            return False

    def use_template(self, template: str | ChatTemplate | None) -> None:
        """Uses another template from the next question on: a name, a jinja2 source, or None for the model's own."""
        self._stop_reading()
        self._format = self._llm.chat_format_of(template)

    @property
    def images(self) -> int:
        """Number of images in the messages."""
        return sum(len(message.images) for message in self._messages)

    def media(self, at: int) -> list[Literal["image", "audio"]]:
        """What the message with this index has besides its text."""
        return ["audio" if isinstance(one.picture, Recording) else "image" for one in self._messages[at].images]

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools that the model may call, in the form of OpenAI's API. Tools are not saved."""
        return () if self._tools is None else self._tools.given

    @tools.setter
    def tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._tools = Tools.read({"tools": [*tools]})

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls of the last answer that have no result yet, each with id, name and arguments as JSON."""
        last = self._messages[-1:]
        return [{"id": call["id"], **call["function"]} for call in last[0].calls] if last else []

    def splitter(self) -> Calling | None:
        """Separates calls from the text of an answer as it arrives; None if the model may call nothing."""
        return None if self._tools is None else Calling(self._format.tool_form, self._tools)

    def answer_calls(
        self, results: Sequence[str], *, on_prompt: OnPrompt | None = None, **settings: Unpack[Settings]
    ) -> Generation:
        """Continues after the calls of the last answer, with a result for each."""
        self._stop_reading()
        if len(results) != len(self.calls):
            raise BadInput(f"there are {len(results)} results for {len(self.calls)} calls")
        return self._ask(Generation, self._with_results(results), on_prompt, settings)

    def _with_results(self, results: Sequence[str]) -> tuple[Message, ...]:
        pairs = zip(self.calls, results, strict=True)
        found = (Message("tool", result, call=(call["id"], call["name"])) for call, result in pairs)
        return (*self._messages, *found)

    @property
    def can_think(self) -> bool:
        """True if the chat template can switch reasoning on and off; otherwise `think` has no effect."""
        return self._format.can_think

    @property
    def tokens(self) -> int:
        """Number of context tokens that the messages take."""
        return self._prompt(self._messages, 0).message_tokens if self._messages else 0

    @overload
    def send(self, text: str, *, n: None = None, **settings: Unpack[Question]) -> Completion: ...
    @overload
    def send(self, text: str, *, n: int, **settings: Unpack[Question]) -> list[Completion]: ...
    def send(self, text: str, *, n: int | None = None, **settings: Unpack[Question]) -> Completion | list[Completion]:
        """Answers a question. With `n`, returns a list of `n` answers; the chat continues from the first.

        `images` and `audio` are lists: each image is a path, the bytes of a file, an array or a PIL image; each sound a
        path, the bytes of a file, or an array of mono samples at 16 kHz.
        """
        if n is None:
            return self.stream(text, **settings).wait()
        start = self._answers(Generation, *self._question(text, settings))
        return wait_all(start, range(answers(n)), self._llm.info.sequences)

    def stream(self, text: str, *, on_prompt: OnPrompt | None = None, **settings: Unpack[Question]) -> Generation:
        """Answers a question, event by event."""
        messages, others = self._question(text, settings)
        return self._ask(Generation, messages, on_prompt, others)

    @overload
    async def asend(self, text: str, *, n: None = None, **settings: Unpack[Question]) -> Completion: ...
    @overload
    async def asend(self, text: str, *, n: int, **settings: Unpack[Question]) -> list[Completion]: ...
    async def asend(
        self, text: str, *, n: int | None = None, **settings: Unpack[Question]
    ) -> Completion | list[Completion]:
        """`send` for asyncio."""
        if n is None:
            return await self.astream(text, **settings).wait()
        start = self._answers(AsyncGeneration, *self._question(text, settings))
        return await await_all(start, range(answers(n)), self._llm.info.sequences)

    def astream(self, text: str, *, on_prompt: OnPrompt | None = None, **settings: Unpack[Question]) -> AsyncGeneration:
        """`stream` for asyncio: `async for event in chat.astream("hi")`."""
        messages, others = self._question(text, settings)
        return self._ask(AsyncGeneration, messages, on_prompt, others)

    def regenerate(self, *, on_prompt: OnPrompt | None = None, **settings: Unpack[Settings]) -> Generation:
        """Answers the last question again, replacing its answer."""
        self._stop_reading()
        return self._ask(Generation, self._messages[: self._last_question() + 1], on_prompt, settings)

    def edit(self, text: str, *, on_prompt: OnPrompt | None = None, **settings: Unpack[Settings]) -> Generation:
        """Replaces the last question, and answers the new one."""
        self._stop_reading()
        at = self._last_question()
        question = {"role": "user", "content": text, "images": self._messages[at].images}
        asked = (*self._messages[:at], *_checked([question], self._format.media_input))
        return self._ask(Generation, asked, on_prompt, settings)

    def undo(self) -> None:
        """Drops the last question and its answer."""
        self._stop_reading()
        self._messages = self._messages[: self._last_question()]

    def reset(self) -> None:
        """Drops all messages except the system prompt."""
        self._stop_reading()
        self._messages = self._messages[: self.system is not None]

    def fork(self) -> "Chat":
        """Returns an independent copy."""
        self._stop_reading()
        settings: Settings = {**self.settings}
        other = Chat(self._llm, self._format, messages=self._messages, think=self.think, settings=settings)
        other.truncate, other._first = self.truncate, self._first
        other._transcript, other._tools = self._transcript, self._tools
        return other

    def with_model(self, llm: Backend) -> "Chat":
        """Returns a copy that continues with another model, which reads all messages again.

        If this chat uses its model's own template, the copy uses the other model's own. A model without
        a projector reads messages without their images. Settings that name token ids or adapters are left out.
        """
        self._stop_reading()
        chat_format = llm.chat_format_of(None if self.has_own_template else self.template.source)
        same = _identity(llm, chat_format) == _identity(self._llm, self._format)
        messages = self._messages if same else tuple(one.for_model(chat_format.media_input) for one in self._messages)
        left_out = () if same else OF_A_MODEL
        settings: Any = {name: value for name, value in self.settings.items() if name not in left_out}
        other = Chat(llm, chat_format, messages=messages, think=self.think, truncate=self.truncate, settings=settings)
        other._tools = self._tools
        if same:
            other._transcript, other._first = self._transcript, self._first
        return other

    def save(self, path: str | os.PathLike[str], *, half_state: bool = False) -> None:
        """Writes the chat and the model's state to a file, for `llm.load_chat`. If this fails, the old file stays.

        With `half_state`, the state is in float16: half as large, and answers may differ from those of this chat.
        Logits processors are functions and are not saved.
        """
        save_chats(path, [self], half_state=half_state)

    def _question(self, text: str, given: Question) -> tuple[tuple[Message, ...], dict[str, Any]]:
        """The messages with a question, and the settings among its arguments."""
        self._stop_reading()
        settings: dict[str, Any] = {**given}
        images = several("images", settings.pop("images", ()), "paths, bytes, arrays or PIL images")
        audio = several("audio", settings.pop("audio", ()), "paths, bytes or arrays")
        asked: dict[str, object] = {"role": "user", "content": text}
        if images or audio:
            paths = [Path(one) if isinstance(one, str) else one for one in images]
            asked["images"] = [*paths, *map(recording_of, audio)]
        before = self._with_results([NOT_CALLED] * len(self.calls))
        return (*before, *_checked([asked], self._format.media_input)), settings

    def _last_question(self) -> int:
        """Index of the last question among the messages."""
        for at in range(len(self._messages) - 1, -1, -1):
            if self._messages[at].role == "user":
                return at
        raise BadInput("the chat has no question yet; ask one first")

    def _asked(self, messages: Sequence[Message]) -> ChatPrompt:
        sees = self._format.media_input is not None
        texts = [message.for_template(sees=sees) for message in messages]
        return self._format.prompt(texts, [self._transcript], self.think, tools=self._tools)

    def _prompt(self, messages: tuple[Message, ...], answer: int) -> ChatPrompt:
        """Returns the prompt for these messages; with `truncate`, drops the oldest turns if they leave too little room.

        It is then cut to half of the context, so that the next prompts share its beginning and cost only their new
        tokens.
        """
        context, system = self._llm.context, int(messages[0].role == "system")
        if self.truncate is None or context is None:
            return self._asked(messages)
        self._first *= self._first < len(messages)  # messages may have been dropped
        turns = [at for at, message in enumerate(messages) if message.role == "user" and at >= self._first] or [system]
        with suppress(ContextFull):
            asked = self._asked(messages[:system] + messages[turns[0] if self._first else system :])
            if len(asked.transcript.ids) + min(answer, context // 4) <= context:
                return asked
        at = bisect_left(turns[:-1], True, key=lambda start: self._size(messages, system, start) <= context // 2)
        self._first = turns[at]
        return self._asked(messages[:system] + messages[self._first :])

    def _size(self, messages: tuple[Message, ...], system: int, start: int) -> float:
        try:
            return len(self._asked(messages[:system] + messages[start:]).transcript.ids)
        except ContextFull:
            return math.inf

    def _ask(
        self, reading: type[R], messages: tuple[Message, ...], on_prompt: OnPrompt | None, settings: Mapping[str, Any]
    ) -> R:
        """Requests an answer. The messages become the chat's own, unless nothing of the answer is read."""
        params, shape = sampling(None, self.settings, settings), form({**self.settings, **settings})
        asked = self._prompt(messages, params.max_tokens)
        self._check_room(len(asked.transcript.ids))
        reader, request = (
            self._format.reader(asked, params, shape, tools=self._tools is not None),
            self._format.request(asked, params, shape, wait=waits(reading)),
        )
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
                self._messages = (*messages, self._with_calls(answer, completion))

        with self._lock:
            self._asking = this
            answer = self._llm._read(reading, request, reader, on_prompt=on_prompt, on_end=record)
            self._messages, self._transcript = messages, asked.transcript
            self._open = weakref.ref(answer)
        return answer

    def _with_calls(self, answer: Message, completion: Completion) -> Message:
        """The message of an answer, with the calls that its text has."""
        calling = self.splitter()
        if calling is None or completion.finish_reason != "stop":
            return answer
        calling.feed(completion.text)
        calling.flush()
        message = calling.message()
        calls = tuple(message.get("tool_calls", ()))
        return replace(answer, content=message["content"] or "", raw=None, calls=calls) if calls else answer

    def _answers(
        self, reading: type[R], messages: tuple[Message, ...], settings: Mapping[str, Any]
    ) -> Callable[[int], R]:
        """Starts the answers to the last message, by index. The first becomes the chat's own."""
        params, shape = sampling(None, self.settings, settings), form({**self.settings, **settings})

        def start(index: int) -> R:
            if index == 0:
                return self._ask(reading, messages, None, settings)
            asked, chosen = self._prompt(messages, params.max_tokens), seeded(params, index)
            request = self._format.request(asked, chosen, shape, wait=waits(reading))
            return self._llm._read(reading, request, self._format.reader(asked, chosen, shape), max_unread=None)

        return start

    def _stop_reading(self) -> None:
        """Cancels an answer in progress; keeps the text read so far."""
        running = self._open() if self._open else None
        if running is not None:
            running.close()
        self._open = None

    def _check_room(self, tokens: int) -> None:
        context = self._llm.context
        if context is not None and tokens >= context:
            raise ContextFull(
                f"the chat comes to {tokens:,} tokens and leaves no room for an answer in the context of {context:,}; "
                "undo or reset it, ask something shorter, set truncate to 'left', or load the model with more context"
            )

    def _repeated(self) -> Sequence[int]:
        """The ids shared with the next prompt. A template may drop parts of earlier messages, such as reasoning."""
        ids, system = self._transcript.ids, int(bool(self._messages) and self._messages[0].role == "system")
        question = *self._messages[:system], *self._messages[max(self._first, system) :], Message("user", "?")
        try:
            asked = self._asked(question).transcript.ids
        except (BadInput, BadTemplate):
            return ids
        return ids[: shared(key_of(ids), key_of(asked))]

    def _saved(self) -> SavedChat:
        """The contents of a saved file."""
        self._stop_reading()
        source = self.template.source
        return SavedChat(
            self._messages, self._transcript, source, self.think, self.settings, self.truncate, self._first
        )

    @classmethod
    def _from_saved(cls, saved: SavedChat, llm: Backend) -> "Chat":
        chat_format = llm.chat_format_of(saved.template)
        chat = cls(
            llm,
            chat_format,
            messages=saved.messages,
            think=saved.think,
            truncate=saved.truncate,
            settings=saved.settings,
        )
        chat._transcript, chat._first = saved.transcript, saved.first
        return chat


def _identity(llm: Backend, chat_format: ChatFormat) -> tuple[str, bytes]:
    """The data that identify a model and its projector."""
    media_input = chat_format.media_input
    return llm.model_file.fingerprint, b"" if media_input is None else media_input.projector.identity


def save_chats(
    path: str | os.PathLike[str],
    chats: Sequence[Chat],
    current: int = 0,
    *,
    lock: WriterLock | None = None,
    half_state: bool = False,
) -> None:
    """Writes chats of one model to one file, with the model's state for the current chat; in float16 if `half_state`.

    If this fails, the old file stays. `lock` is that of a caller who has already locked the file.
    """
    llm, saved = chats[current]._llm, [chat._saved() for chat in chats]
    ids = chats[current]._repeated()
    kept = llm._driver.call(lambda engine: engine.export(ids)) if ids else None
    length, state = kept or (0, {})
    state = session.halved(state) if half_state else state
    session.write(path, SavedSession(saved, current, length, state), llm.model_file, lock=lock)


def load_chats(path: str | os.PathLike[str], llm: Backend) -> tuple[list[Chat], int]:
    """Loads the chats in a file, and the index of the current one. Raises BadFile with the reason if there are none."""
    saved = session.read(path, llm.model_file, llm.vocab_size, llm.media_input)
    chats = []
    for chat in saved.chats:
        try:
            chats.append(Chat._from_saved(chat, llm))
        except (BadInput, BadTemplate, BadGrammar, TypeError) as error:
            raise BadFile(f"{path}: is not a chat that this version can continue: {error}") from None
    ids = saved.chats[saved.current].transcript.ids[: saved.length]
    if ids:
        with suppress(ContextFull, CacheFull):  # no room for the state: the next prompt recomputes it
            llm._driver.call(lambda engine: engine.restore(ids, saved.state))
    return chats, saved.current


def messages_of(messages: Sequence[Mapping[str, object]], media_input: MediaInput | None = None) -> tuple[Message, ...]:
    """Converts messages to the form that a chat stores; may be empty."""
    return _checked(messages, media_input) if messages else ()


def _checked(messages: Sequence[Mapping[str, object]], media_input: MediaInput | None = None) -> tuple[Message, ...]:
    if not messages:
        return ()
    texts, images = marked(messages, None if media_input is None else media_input.keeping)
    found = []
    for m in check_messages(texts):
        content = joined(m["content"])
        seen = tuple(images[mark] for mark in marks_in(content) if mark in images)
        found.append(Message(m["role"], content, str(m.get("reasoning") or ""), images=seen))
    return tuple(found)
