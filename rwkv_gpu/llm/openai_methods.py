"""Methods in the form of OpenAI's API: dicts in, dicts out, as in llama-cpp-python."""

import base64
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypeVar, overload

from ..engine.engine import Engine
from ..errors import BadInput
from ..text.budget import Exceeded, Limits
from . import replies, validate
from .chat_completion import Json
from .completion import seeded
from .generation import AsyncGeneration, Generation, Reading, waits
from .images import ImagePrompt
from .open_model import Messages, OpenModel, PromptRequest, Prompts, prompts_of
from .pooling import Floats
from .replies import Prepared, Replying
from .text_completion import DEFAULTS, TextFields, TextReply

R = TypeVar("R", bound=Reading)
T = TypeVar("T")
MAX_TEXTS = 2048  # maximum texts of a request, as OpenAI's API has it for embeddings


class OpenAIMethods(OpenModel):
    """`create_completion`, `create_chat_completion` and `create_embedding`, and their asyncio forms prefixed with a."""

    @overload
    def create_completion(self, prompt: Prompts, *, stream: Literal[False] = False, **fields: Any) -> Json: ...
    @overload
    def create_completion(self, prompt: Prompts, *, stream: Literal[True], **fields: Any) -> Iterator[Json]: ...
    def create_completion(self, prompt: Prompts, *, stream: bool = False, **fields: Any) -> Json | Iterator[Json]:
        """Continues a text, token ids, or a list of either. Returns a dict, or its chunks if `stream` is set.

        `fields` are the fields of OpenAI's API (n, echo, stop, seed, logprobs, logit_bias, max_tokens, stream_options
        ...) and all settings of `generate`. As in OpenAI's API, the defaults are temperature 1 and 16 tokens.
        """
        asked = _complete(self, Generation, prompt, fields)
        if not validate.truth("stream", stream):
            return replies.whole(asked)
        if not asked.answers:
            raise BadInput("max_tokens is 0; there is nothing to stream")
        return replies.chunks(asked)

    __call__ = create_completion

    async def acreate_completion(self, prompt: Prompts, **fields: Any) -> Json:
        """`create_completion` for asyncio."""
        return await replies.awhole(_complete(self, AsyncGeneration, prompt, fields))

    def astream_completion(self, prompt: Prompts, **fields: Any) -> AsyncIterator[Json]:
        """Yields the chunks of `create_completion` for asyncio; several answers come one after the other."""
        return replies.achunks(_complete(self, AsyncGeneration, prompt, fields))

    @overload
    def create_chat_completion(
        self, messages: Messages, *, stream: Literal[False] = False, think: bool | None = None, **fields: Any
    ) -> Json: ...
    @overload
    def create_chat_completion(
        self, messages: Messages, *, stream: Literal[True], think: bool | None = None, **fields: Any
    ) -> Iterator[Json]: ...
    def create_chat_completion(
        self, messages: Messages, *, stream: bool = False, think: bool | None = None, **fields: Any
    ) -> Json | Iterator[Json]:
        """Answers messages. Returns a dict, or its chunks if `stream` is set.

        `fields` are the fields of OpenAI's API (n, stop, seed, logprobs, top_logprobs, max_completion_tokens, user ...)
        and all settings of a chat. Earlier answers among the messages are not tokenised or computed again.
        """
        stream = bool(validate.truth("stream", stream))
        asked = replies.ask(self, Generation, messages, think, fields)
        return replies.chunks(asked) if stream else replies.whole(asked)

    async def acreate_chat_completion(self, messages: Messages, *, think: bool | None = None, **fields: Any) -> Json:
        """`create_chat_completion` for asyncio."""
        return await replies.awhole(replies.ask(self, AsyncGeneration, messages, think, fields))

    def astream_chat_completion(
        self, messages: Messages, *, think: bool | None = None, **fields: Any
    ) -> AsyncIterator[Json]:
        """Yields the chunks of `create_chat_completion` for asyncio; several answers come one after the other."""
        return replies.achunks(replies.ask(self, AsyncGeneration, messages, think, fields))

    def prepare_completion(self, prompt: Prompts, *, limits: Limits | None = None, **fields: Any) -> Prepared:
        """Checks and tokenises the input of `create_completion`, and starts nothing, so that requests can be queued.

        With `limits`, raises `Exceeded` for larger inputs; an event loop may then call it.
        """
        return _prepare(self, prompt, fields, wait=True, quick=limits is not None)

    def prepare_chat_completion(
        self, messages: Messages, *, think: bool | None = None, limits: Limits | None = None, **fields: Any
    ) -> Prepared:
        """Checks and tokenises the input of `create_chat_completion`, and starts nothing."""
        return replies.prepare(self, messages, think, fields, limits=limits)

    def start(self, prepared: Prepared, reading: Callable[..., R], **more: Any) -> list[R]:
        """Submits the requests of prepared answers. Returns a `reading` for each; `more` are its further arguments."""
        return prepared.start(partial(self._read, reading, **more))

    def wake(self, patience: float = 0.0) -> None:
        """Starts the requests that were submitted with `wake=False`.

        With `patience`, more requests follow, so this waits up to that many seconds for a step with the present ones.
        """
        self._driver.wake(patience)

    def create_embedding(
        self,
        input: Prompts,
        *,
        model: str | None = None,
        encoding_format: Literal["float", "base64"] = "float",
        dimensions: int | None = None,
        user: str | None = None,  # noqa: ARG002  OpenAI's field for a service's customer
    ) -> Json:
        """Returns embeddings of one or more texts as unit vectors, computed as in `embed`."""
        ids = self.prepare_embedding(input, encoding_format)
        vectors = self._driver.work(self.embedding_work(ids, dimensions))
        return self.embedding_reply(ids, vectors, model, encoding_format)

    def prepare_embedding(
        self, input: Prompts, encoding_format: str = "float", *, truncate: bool = False
    ) -> list[list[int]]:
        """Checks and tokenises the input of `create_embedding`; computes nothing.

        A text that is too long is refused, or cut at its end with `truncate`.
        """
        if encoding_format not in ("float", "base64"):
            raise BadInput(f"encoding_format is {encoding_format!r}; it must be float or base64")
        return self._texts("input", _texts_of("input", input), truncate=truncate)

    def embedding_reply(
        self, ids: Sequence[Sequence[int]], vectors: Floats, model: str | None, encoding_format: str
    ) -> Json:
        """The reply of `create_embedding`."""
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, encoding_format)}
            for index, vector in enumerate(vectors)
        ]
        tokens = sum(map(len, ids))
        return {
            "object": "list",
            "data": data,
            "model": model or self.info.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    def begin_work(self, pieces: Callable[[Engine], Generator[None, None, T]]) -> "Future[T]":
        """Runs a generator of `measures` on the engine's thread, one piece between two steps.

        Cancel the future to stop it.
        """
        return self._driver.begin(pieces)

    async def acreate_embedding(self, input: Prompts, **fields: Any) -> Json:
        """`create_embedding` for asyncio."""
        import asyncio

        return await asyncio.to_thread(partial(self.create_embedding, input, **fields))


def _complete(llm: OpenModel, reading: type[R], prompt: Prompts, given: Mapping[str, Any]) -> Replying[R]:
    """Requests n answers to each prompt."""
    prepared = _prepare(llm, prompt, given, wait=waits(reading))
    if prepared.scoring and waits(reading):
        prepared = prepared.scored([llm._driver.work(pieces) for pieces in prepared.scoring])
    elif prepared.scoring:
        raise BadInput("echo with logprobs is for create_completion alone; it has to wait for the prompt")
    return Replying(prepared.reply, prepared.start(partial(llm._read, reading)))


def _prepare(llm: OpenModel, prompt: Prompts, given: Mapping[str, Any], *, wait: bool, quick: bool = False) -> Prepared:
    """Prepares n answers to each prompt. `quick` raises `Exceeded` if that takes long."""
    fields = TextFields.read(given, llm.default_settings(DEFAULTS))
    fields.params.check_vocabulary(llm.vocab_size)
    prompts = _filled_in(llm, fields.suffix, _texts_of("prompt", prompt))
    if quick and (fields.form or fields.n * len(prompts) > replies.MAX_QUICK_ANSWERS):
        raise Exceeded("compiles a form, or has many answers")
    if quick and any(isinstance(one, ImagePrompt) for one in prompts):
        raise Exceeded("decodes images")
    read = [llm._ids_and_images(one) for one in prompts]
    if fields.scores and any(images for _, images in read):
        raise BadInput("echo with logprobs is for prompts without images; leave out one of them")
    texts = [_text_of(llm, one, ids) for one, (ids, _) in zip(prompts, read, strict=True)]
    requests = [
        llm._request(PromptRequest(ids, seeded(fields.params, index), fields.form, salt=salt, images=images), wait=wait)
        for ids, images in read
        for salt in [llm._salt(fields.cache_salt, ids, once=not fields.caches)]
        for index in range(fields.n)
        if fields.generates
    ]
    return Prepared(TextReply(fields, llm.tokenizer, llm.info.name, texts, [ids for ids, _ in read]), requests)


def _filled_in(llm: OpenModel, suffix: str, prompts: list[Any]) -> list[Any]:
    """The prompts; with a suffix, those that ask for the text between each of them and the suffix."""
    if suffix and not all(isinstance(one, str) for one in prompts):
        raise BadInput("a prompt with a suffix must be a text")
    return [llm.infill_prompt(one, suffix) for one in prompts] if suffix else prompts


def _texts_of(name: str, given: Prompts) -> list[Any]:
    """The texts of a request."""
    texts = prompts_of(name, given)
    if len(texts) > MAX_TEXTS:
        raise BadInput(f"{name} has {len(texts):,} texts; send at most {MAX_TEXTS:,} at a time")
    return texts


def _text_of(llm: OpenModel, prompt: Any, ids: Sequence[int]) -> str:
    """The text of a prompt."""
    if isinstance(prompt, ImagePrompt):
        return prompt.text
    return prompt if isinstance(prompt, str) else llm.tokenizer.decode(ids)


def _encoded(vector: Floats, encoding: str) -> list[float] | str:
    if encoding == "float":
        return [float(value) for value in vector]
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
