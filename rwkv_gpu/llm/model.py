"""A loaded model: text in, text out. Every method may be called from any thread; calls join the running batch."""

import os
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack, overload

import numpy as np
import numpy.typing as npt

from ..engine.engine import Engine
from ..engine.request import Request
from ..engine.sampling_params import SamplingParams
from ..errors import BadInput
from ..text.grammar import Grammars, pool_of
from ..text.template import ChatTemplate
from ..text.tokenizer import Tokenizer
from . import measures, replies, validate
from .chat import Chat, load_chats, messages_of
from .chat_completion import Json
from .chat_format import ChatFormat, budget, closing
from .completion import GREEDY, Completion, Settings, form, sampling
from .driver import Driver
from .generation import AsyncGeneration, Generation, OnPrompt, Reading
from .info import Info
from .model_file import ModelFile
from .reader import Ends, Reader
from .transcript import Transcript

Prompt = str | Sequence[int]
Truncate = Literal["left"]
Messages = Sequence[Mapping[str, object]]
R = TypeVar("R", bound=Reading)
AT_EXIT = 1.0  # seconds that the end of a program waits for a step of a model that nobody closed
RECENT = 32  # whose ids are remembered for prompts that go on with them


class LLM:
    """A loaded model. Use as a context manager, or call `close`."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, metadata: Mapping[str, Any], info: Info, model_file: ModelFile
    ) -> None:
        self.tokenizer = tokenizer
        self.info = info
        self.vocab_size = info.vocabulary
        self.context = info.context
        self._metadata = metadata
        self._model_file = model_file
        self._recent: deque[Transcript] = deque(maxlen=RECENT)
        self._grammar_pool = pool_of(tokenizer, info.vocabulary)  # helper processes, none before they are needed
        self._driver = Driver(engine)
        self._finalizer = weakref.finalize(self, self._driver.close, AT_EXIT)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives back all memory. Whoever waits for an answer gets `Closed`."""
        self._finalizer.detach()
        self._driver.close()
        self._grammar_pool.close()

    # ------------------------------------------------------------ tokens

    def tokenize(self, text: str | bytes, *, special: bool = False, parse: bool = False) -> list[int]:
        """Token ids of a text; `special` adds what the file says stands at the ends, `parse` reads special tokens."""
        return self.tokenizer.encode(validate.text("text", text), special=special, parse=parse)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self.tokenizer.decode(validate.token_ids("ids", ids))

    # ------------------------------------------------------------ generation

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        truncate: Truncate | None = None,
        **settings: Unpack[Settings],
    ) -> Completion:
        """Continues a prompt until the model ends, a stop string is met, or `max_tokens` are said.

        `settings` are fields of SamplingParams; without any, greedy. `schema`, `regex` or `grammar` give the answer a
        form. A prompt that is longer than the context is refused, or loses its beginning where `truncate` is "left".
        """
        return self.stream(prompt, params, truncate=truncate, **settings).wait()

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        on_prompt: OnPrompt | None = None,
        truncate: Truncate | None = None,
        **settings: Unpack[Settings],
    ) -> Generation:
        """The same event by event. `on_prompt` is told how many tokens of the prompt were fed, and how many it has."""
        return self._start(Generation, prompt, params, settings, truncate, on_prompt)

    async def agenerate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        truncate: Truncate | None = None,
        **settings: Unpack[Settings],
    ) -> Completion:
        """`generate` for asyncio."""
        return await self.astream(prompt, params, truncate=truncate, **settings).wait()

    def astream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        on_prompt: OnPrompt | None = None,
        truncate: Truncate | None = None,
        **settings: Unpack[Settings],
    ) -> AsyncGeneration:
        """`stream` for asyncio: `async for event in llm.astream("The sea")`."""
        return self._start(AsyncGeneration, prompt, params, settings, truncate, on_prompt)

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
        truncate: Truncate | None = None,
        **settings: Unpack[Settings],
    ) -> list[Completion]:
        """Continues many prompts, as many at a time as the model was loaded for. `progress`: how many are done."""
        if isinstance(prompts, str):
            raise BadInput("prompts is one text; give a list of them, or call generate")
        validate.called("progress", progress)
        every = validate.several("prompts", prompts, "prompts")
        running = [self._start(Generation, prompt, params, settings, truncate, None) for prompt in every]
        try:
            for done, generation in enumerate(running, 1):
                generation.wait()
                if progress is not None:
                    progress(done, len(running))
        finally:
            for generation in running:
                generation.close()
        return [generation.completion for generation in running]

    # ------------------------------------------------------------ texts that are given

    def logits(self, ids: Sequence[int], *, chunk_size: int | None = None) -> npt.NDArray[np.float32]:
        """The logits of every position, from a fresh state. [T, V]"""
        ids, rows = validate.token_ids("ids", ids), validate.number("chunk_size", chunk_size, validate.CHUNK)
        Request(ids).check(self.vocab_size, self.context)
        return self._driver.work(partial(measures.logits, ids=ids, chunk_size=rows))

    def logprobs(self, text: Prompt) -> npt.NDArray[np.float64]:
        """The log probability of each token but the first, after those before it. [T - 1]"""
        return self._driver.work(partial(measures.logprobs, ids=self._ids(text, name="text")))

    def perplexity(
        self, text: Prompt, *, window: int | None = None, progress: Callable[[int, int], None] | None = None
    ) -> float:
        """exp of the mean of -log p, over each token but the first.

        What is longer than `window` tokens, or than the context, goes through windows that overlap by half.
        `progress` gets how many tokens are done, and of how many.
        """
        validate.called("progress", progress)
        window = validate.number("window", window, validate.WINDOW)
        ids = self._tokens(text, "text")
        if len(ids) < 2:
            raise BadInput(f"the text has {len(ids)} tokens; perplexity needs at least 2")
        Request(ids).check(self.vocab_size, None)
        if self.context is not None:
            window = validate.number("context", min(window or self.context, self.context), validate.WINDOW)
        return self._driver.work(partial(measures.perplexity, ids=ids, window=window, progress=progress))

    @overload
    def embed(self, texts: str) -> npt.NDArray[np.float32]: ...
    @overload
    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]: ...
    def embed(self, texts: str | Sequence[str]) -> npt.NDArray[np.float32]:
        """What a text means to the model: the mean of its final hidden states, of length one. [D], or [N, D] of many"""
        many = [texts] if isinstance(texts, str) else validate.several("texts", texts, "texts")
        if not many:
            raise BadInput("texts is empty; give at least one")
        ids = [self._ids(text, name=f"texts[{n}]") for n, text in enumerate(many)]
        rows = self._driver.work(partial(measures.embeddings, texts=ids))
        return rows[0] if isinstance(texts, str) else rows

    # ------------------------------------------------------------ talk

    @cached_property
    def chat_format(self) -> ChatFormat:
        """How the model's own template has it talked to."""
        return self._format(ChatTemplate.from_metadata(self._metadata))

    def chat_format_of(self, template: str | ChatTemplate | None) -> ChatFormat:
        """The same by another template: a built-in one by its name, or the jinja2 source of one."""
        if template is None:
            return self.chat_format
        if isinstance(template, str):
            template = ChatTemplate.from_metadata(self._metadata, name=template)
        if not isinstance(template, ChatTemplate):
            raise BadInput(f"template is {template!r}; it must be a name, a jinja2 source or a ChatTemplate")
        return self._format(template)

    def chat(
        self,
        system: str | None = None,
        *,
        template: str | ChatTemplate | None = None,
        think: bool | None = None,
        messages: Sequence[Mapping[str, object]] = (),
        **settings: Unpack[Settings],
    ) -> Chat:
        """A new talk, told `system` before all, or one that goes on from `messages`.

        `template` is a built-in one by its name or a jinja2 source, where the model's own shall not be used; `think`
        asks a template that knows of thoughts for them, or for none. `settings` are those of every answer.
        """
        told = [{"role": "system", "content": system}] if system is not None else []
        begun = (*messages_of(told), *messages_of(messages))
        return Chat(self, self.chat_format_of(template), messages=begun, think=think, settings=settings)

    def load_chat(self, path: str | os.PathLike[str]) -> Chat:
        """The chat that `chat.save` wrote; of a session with several branches, the current one."""
        chats, current = load_chats(path, self)
        return chats[current]

    @overload
    def create_chat_completion(
        self, messages: Messages, *, stream: Literal[False] = False, think: bool | None = None, **wishes: Any
    ) -> Json: ...
    @overload
    def create_chat_completion(
        self, messages: Messages, *, stream: Literal[True], think: bool | None = None, **wishes: Any
    ) -> Iterator[Json]: ...
    def create_chat_completion(
        self, messages: Messages, *, stream: bool = False, think: bool | None = None, **wishes: Any
    ) -> Json | Iterator[Json]:
        """An answer to messages, in the shape of OpenAI's API: a dict, or its chunks where `stream` is set.

        `wishes` are those of that API (n, stop, seed, logprobs, top_logprobs, max_completion_tokens, stream_options
        ...) and all fields of SamplingParams. What earlier answers said is not tokenised or computed again.
        """
        stream = bool(validate.truth("stream", stream))
        asked = replies.ask(self, Generation, messages, think, wishes)
        return replies.chunks(asked) if stream else replies.whole(asked)

    async def acreate_chat_completion(self, messages: Messages, *, think: bool | None = None, **wishes: Any) -> Json:
        """The whole for asyncio."""
        return await replies.awhole(replies.ask(self, AsyncGeneration, messages, think, wishes))

    def astream_chat_completion(
        self, messages: Messages, *, think: bool | None = None, **wishes: Any
    ) -> AsyncIterator[Json]:
        """The chunks for asyncio; of several answers, one after the other."""
        return replies.achunks(replies.ask(self, AsyncGeneration, messages, think, wishes))

    # ------------------------------------------------------------ inside

    def _start(
        self,
        reading: type[R],
        prompt: Prompt,
        params: SamplingParams | None,
        settings: Mapping[str, Any],
        truncate: Truncate | None,
        on_prompt: OnPrompt | None,
    ) -> R:
        params, shape = sampling(params, GREEDY, settings), form(settings)
        params.check_vocabulary(self.vocab_size)
        ids = self._ids(prompt, truncate, params.max_tokens)
        left = budget(params, len(ids), self.context)
        grammar = None if shape is None else self._grammars.grammar(shape, budget=left)
        ends = self.tokenizer.stop_ids | (frozenset() if grammar is None else grammar.stop_ids)
        request = Request(ids, replace(params, stop_ids=params.stop_ids | ends), grammar)
        reader = Reader(self.tokenizer, Ends(params.stop), closing=closing(self.tokenizer, shape))
        return self._read(reading, request, reader, on_prompt=on_prompt)

    @cached_property
    def _grammars(self) -> Grammars:
        """What makes a grammar of a form."""
        return Grammars(self.tokenizer, self.vocab_size, pool=self._grammar_pool)

    def _format(self, template: ChatTemplate) -> ChatFormat:
        pool = self._grammar_pool
        return ChatFormat(self.tokenizer, template, self.vocab_size, context=self.context, pool=pool)

    def _read(self, reading: type[R], request: Request, reader: Reader, **more: Any) -> R:
        """Has the engine answer; what is read keeps the model open."""
        return reading(self._driver, request, reader, owner=self, **more)

    def _tokens(self, prompt: Prompt, name: str) -> list[int]:
        return self.tokenize(prompt, special=True) if isinstance(prompt, str) else validate.token_ids(name, prompt)

    def _ids(
        self, prompt: Prompt, truncate: Truncate | None = None, answer: int = 0, *, name: str = "prompt"
    ) -> list[int]:
        """The tokens of a prompt that fits; `truncate` leaves it its end, with room for an answer where it can."""
        ids = self._tokens(prompt, name)
        if truncate not in (None, "left"):
            raise BadInput(f"truncate is {truncate!r}; it must be 'left' or None")
        if truncate and self.context is not None and len(ids) > self.context - answer:
            ids = ids[-max(self.context - answer, (self.context + 1) // 2) :]
        Request(ids).check(self.vocab_size, self.context)
        return ids
