"""Answers in OpenAI's format: requests `n` answers, and reads them whole or in chunks."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from ..engine.cache.prefix_index import Salt
from ..engine.engine import Engine
from ..engine.request import Request
from ..text.budget import Exceeded, Limits
from .backend import Backend, RecentTranscript
from .chat_completion import NO_REASONING_OPTIONS, Json, Reply, RequestFields, in_turns
from .chat_format import ChatPrompt
from .completion import CHAT_DEFAULTS, Completion
from .generation import AsyncGeneration, Generation, Reading, waits
from .images import has_images, spans_of
from .measures import Score, scores
from .reader import Reader
from .text_completion import TextReply

R = TypeVar("R", bound=Reading)
MAX_QUICK_ANSWERS = 4  # maximum number of answers that are quick to prepare


@dataclass(frozen=True)
class Replying(Generic[R]):
    """A reply, and its answers."""

    reply: Reply | TextReply
    answers: Sequence[R]

    def last(self) -> Iterator[Json]:
        """The chunks after all answers."""
        return self.reply.last([answer.completion for answer in self.answers])


@dataclass(frozen=True)
class Prepared:
    """Answers ready to start: everything is checked and tokenised, and nothing has been requested from the engine."""

    reply: Reply | TextReply
    requests: Sequence[tuple[Request, Reader]]  # one per answer
    on_end: Callable[[Completion], None] | None = None

    @property
    def prompts(self) -> list[Sequence[int]]:
        """The tokens of each prompt; answers to one prompt share it."""
        if isinstance(self.reply, TextReply):
            return [*self.reply.ids]
        return [request.ids for request, _ in self.requests[:: self.reply.fields.n]]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))

    def kept(self) -> "Prepared":
        """A copy whose states are stored after the prompt and after the answer."""
        requests = [(replace(request, keep=True), reader) for request, reader in self.requests]
        return replace(self, requests=requests)

    @property
    def scoring(self) -> list[Callable[[Engine], Generator[None, None, list[Score]]]]:
        """Functions that compute the log probabilities of each prompt, if requested; pass the results to `scored`."""
        if not (isinstance(self.reply, TextReply) and self.reply.fields.scores):
            return []
        top = self.reply.fields.params.logprobs
        return [partial(scores, ids=ids, top=top) for ids in self.reply.ids]

    def scored(self, found: Sequence[Sequence[Score]]) -> "Prepared":
        """A copy with the log probabilities of its prompts."""
        assert isinstance(self.reply, TextReply)
        return replace(self, reply=replace(self.reply, scores=found))

    @property
    def progress(self) -> bool:
        """True if a stream reports how much of the prompt is read."""
        return self.reply.fields.progress

    def start(self, read: Callable[..., R]) -> list[R]:
        """Requests the answers. If one is refused, those before it are cancelled."""
        begun: list[R] = []
        try:
            for request, reader in self.requests:
                begun.append(read(request, reader, on_end=self.on_end))
        except BaseException:
            for answer in begun:
                answer.close()
            raise
        return begun


def prompt_of(
    llm: Backend,
    messages: Sequence[Mapping[str, object]],
    think: bool | None,
    given: Mapping[str, Any],
    *,
    limits: Limits | None = None,
    bounded: bool = True,
) -> tuple[RequestFields, ChatPrompt]:
    """Reads the fields of a request, and renders its prompt. If `bounded`, a prompt longer than the context is refused.

    With `limits`, raises `Exceeded` if this takes too long. Requests with a grammar or tools always do.
    """
    reasoning = NO_REASONING_OPTIONS if llm.preset is None else llm.preset.reasoning
    fields = RequestFields.read(given, llm.default_settings(CHAT_DEFAULTS), reasoning)
    messages = messages if llm.preset is None else llm.preset.before(messages)
    fields.params.check_vocabulary(llm.vocab_size)
    if limits is not None and (fields.form or fields.tools or fields.n > MAX_QUICK_ANSWERS or not llm.has_chat_format):
        raise Exceeded("compiles a form or a template, or has many answers")
    if limits is not None and has_images(messages):
        raise Exceeded("decodes images")
    number = Salt.of(fields.cache_salt).number
    known = [one.transcript for one in [*llm._recent] if one.salt == number]
    return fields, llm.chat_format.prompt(
        messages, known, reasoning.think if think is None else think, fields.variables, continues=fields.continues,
        opens=fields.opens, tools=fields.tools, limits=limits, salt=number, bounded=bounded,
    )  # fmt: skip


def prepare(
    llm: Backend,
    messages: Sequence[Mapping[str, object]],
    think: bool | None,
    given: Mapping[str, Any],
    *,
    wait: bool = True,
    limits: Limits | None = None,
) -> Prepared:
    """Prepares answers to messages. Earlier answers keep their token ids. `wait` waits until a grammar is compiled.

    With `limits`, raises `Exceeded` if this takes too long. Requests with a grammar or tools always do.
    """
    fields, asked = prompt_of(llm, messages, think, given, limits=limits)
    chat_format, tools = llm.chat_format, fields.tools
    found = tools.grammar(chat_format.tool_form, llm.tokenizer, fields.form) if tools is not None else None
    shape, after = found or (fields.form, "")
    ids = asked.transcript.ids
    asked = replace(asked, salt=llm._salt(fields.cache_salt, ids, once=not fields.caches))
    Request(ids, images=spans_of(ids, asked.images)).check(llm.vocab_size, llm.context)
    requests = []
    for index in range(fields.n):
        params = fields.params_of(index)
        request = chat_format.request(asked, params, shape, after=after, wait=wait)
        request = chat_format.limited(request, asked, fields.reasoning, after)
        requests.append((request, chat_format.reader(asked, params, None if after else shape, tools=tools is not None)))
    reply = Reply(fields, llm.tokenizer, llm.info.name, chat_format.tool_form)
    return Prepared(reply, requests, partial(_remember, llm, asked))


def ask(
    llm: Backend,
    reading: type[R],
    messages: Sequence[Mapping[str, object]],
    think: bool | None,
    given: Mapping[str, Any],
) -> Replying[R]:
    """Requests an answer to messages."""
    prepared = prepare(llm, messages, think, given, wait=waits(reading))
    return Replying(prepared.reply, prepared.start(partial(llm._read, reading)))


def whole(asked: Replying[Generation]) -> Json:
    """Waits for all answers and returns the reply."""
    return asked.reply.whole([(answer.wait(), answer.events) for answer in asked.answers])


async def awhole(asked: Replying[AsyncGeneration]) -> Json:
    """`whole` for asyncio."""
    return asked.reply.whole([(await answer.wait(), answer.events) for answer in asked.answers])


def chunks(asked: Replying[Generation]) -> Iterator[Json]:
    """Yields the chunks of all answers, interleaved. If the reader stops, the answers are cancelled."""
    try:
        yield from in_turns([_chunks(asked.reply, index, answer) for index, answer in enumerate(asked.answers)])
        yield from asked.last()
    finally:
        for answer in asked.answers:
            answer.close()


async def achunks(asked: Replying[AsyncGeneration]) -> AsyncIterator[Json]:
    """Like `chunks`, for asyncio, one answer after the other."""
    try:
        for index, answer in enumerate(asked.answers):
            for chunk in asked.reply.opening(index):
                yield chunk
            async for event in answer:
                for chunk in asked.reply.chunks(index, event):
                    yield chunk
            for chunk in asked.reply.closing(index, answer.completion):
                yield chunk
        for chunk in asked.last():
            yield chunk
    finally:
        for answer in asked.answers:
            answer.close()


def _chunks(reply: Reply | TextReply, index: int, answer: Generation) -> Iterator[Json]:
    yield from reply.opening(index)
    for event in answer:
        yield from reply.chunks(index, event)
    yield from reply.closing(index, answer.completion)


def _remember(llm: Backend, asked: ChatPrompt, completion: Completion) -> None:
    llm._recent.append(RecentTranscript(asked.salt.number, asked.transcript.append(llm.tokenizer, completion.tokens)))
