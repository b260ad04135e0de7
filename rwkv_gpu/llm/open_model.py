"""An open model: its tokenizer and its engine's driver. Turns prompts into requests."""

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from ..engine.cache.prefix_index import PLAIN, TOKEN, Key, Salt, key_of
from ..engine.engine import Activity, Engine
from ..engine.media import Span
from ..engine.request import Request, check_length
from ..engine.sampling_params import SamplingParams
from ..errors import BadInput
from ..models.registry import DECIDES, ENCODER
from ..text.base import Tokenizer
from ..text.grammar import Form, Grammars, pool_of
from ..text.template import ChatTemplate
from . import measures, validate
from .backend import RecentTranscript
from .chat import Truncate
from .chat_format import ChatFormat, budget, closing
from .completion import Settings, check_ends
from .decision_head import DecisionHead
from .decisions import Asked
from .driver import MAX_REQUESTS, Driver
from .generation import Reading, waits
from .images import ImagePrompt, MediaInput, spans_of
from .info import Info
from .model_file import ModelFile
from .pooling import MEAN, Doubles, Floats, Pooling, ranking_ids
from .preset import Preset
from .reader import Ends, Reader
from .shared_prompts import forms
from .stored_states import StoredStates
from .transcript import Transcript

Prompt = str | Sequence[int]
Prompts = Prompt | ImagePrompt | Sequence[str | ImagePrompt] | Sequence[Sequence[int]]
Messages = Sequence[Mapping[str, object]]
R = TypeVar("R", bound=Reading)
AT_EXIT = 1.0  # seconds that the interpreter waits at exit for a step of a model that was not closed
RECENT = 32  # number of recent transcripts whose ids are remembered for prompts that continue them


class TemplateText(str):
    """A prompt that a chat template made."""

    __slots__ = ()


class TemplateIds(list[int]):
    """The token ids of a prompt that a chat template made."""


class PromptRequest(NamedTuple):
    """A requested answer."""

    ids: Sequence[int]  # prompt ids
    params: SamplingParams
    form: Form | None
    is_turn: bool = False  # True if the prompt is from a chat template, so that the answer ends with the turn
    salt: Salt = PLAIN
    images: Sequence[Span] = ()  # images of the prompt
    text: str | None = None  # the prompt, if it is a text


class OpenModel:
    """Base of a model's methods: holds its components, tokenises, and turns prompts into requests."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        metadata: Mapping[str, Any],
        info: Info,
        model_file: ModelFile,
        max_requests: int = MAX_REQUESTS,
        states: StoredStates | None = None,
        pooling: Pooling | None = None,
        media_input: MediaInput | None = None,
        preset: Preset | None = None,
        decision_head: DecisionHead | None = None,
    ) -> None:
        self.media_input = media_input  # encodes images; None for models without vision
        self.preset = preset  # the preset that named the model; None for its own name
        self.tokenizer = tokenizer
        self.info = info
        self.vocab_size = info.vocabulary
        self.context = info.context
        self._metadata = metadata
        self._pooling = pooling or Pooling(MEAN)
        self._decision_head = decision_head  # of a model that decides between options
        self.model_file = model_file
        self._recent: deque[RecentTranscript] = deque(maxlen=RECENT)
        self._grammar_pool = pool_of(tokenizer, info.vocabulary)  # helper processes, started when needed
        self.states = states  # states stored outside this process
        self._shared: list[Key] = []  # prefixes that requests of all salts share
        self._driver = Driver(engine, max_requests, states)
        self._finalizer = weakref.finalize(self, self._driver.close, AT_EXIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        import asyncio  # also imports TLS, which most programs do not need

        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        """Name and device of the model."""
        info, state = self.info, "closed" if not self._finalizer.alive else f"on {self.info.device}"
        return f"<LLM {info.name!r}: {info.architecture}, {info.parameters:,} parameters, {info.format}, {state}>"

    def close(self) -> None:
        """Frees all memory. Callers waiting for an answer get `Closed`."""
        self._finalizer.detach()
        self._driver.close()
        if self.states is not None:
            self.states.close()
        self._grammar_pool.close()

    def store_states(self, seconds: float) -> None:
        """Writes chat states that are not yet in the store, for at most `seconds`. Call it before shutdown."""
        if self.states is not None:
            end = time.monotonic() + seconds
            self.states.try_again()
            self._driver.push_states(end)
            self.states.flush(end)

    @property
    def activity(self) -> Activity:
        """Current load of the engine; never waits for a step."""
        return self._driver.activity

    def share_prompts(self, texts: Sequence[str]) -> None:
        """Lets requests of all cache salts share the prefixes of these system prompts."""
        self._shared = [key for text in texts for key in forms(text, self.tokenizer, lambda: self.chat_format) if key]

    # ------------------------------------------------------------ tokens

    def tokenize(self, text: str | bytes, *, special: bool = False, parse: bool = False) -> list[int]:
        """Returns the token ids of a text.

        `special` adds BOS and EOS as the file specifies; `parse` matches special tokens.
        """
        return self.tokenizer.encode(validate.text("text", text), special=special, parse=parse)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids."""
        return self.tokenizer.decode(validate.token_ids("ids", ids))

    def infill_prompt(
        self, prefix: str, suffix: str, extra: str = "", files: Sequence[tuple[str, str]] = ()
    ) -> list[int]:
        """The prompt that asks for the text between a prefix and a suffix; the prompt begins with `extra`.

        `files` are names and texts of other files. BadInput if the model has no tokens for that.
        """
        marks = self.tokenizer.vocabulary.infill
        if marks is None:
            raise BadInput("this model has no tokens to fill in the middle; use one for code, such as qwen2.5-coder")
        self._check_length(prefix, suffix, extra, *(text for file in files for text in file))
        before, between, after = marks
        bos = [self.tokenizer.bos] if self.tokenizer.add_bos and self.tokenizer.bos is not None else []
        texts = map(self.tokenize, (prefix, suffix, extra))
        ids = [*self._files_before(files), before, *next(texts), between, *next(texts), after, *next(texts)]
        return [*bos, *ids]

    def _files_before(self, files: Sequence[tuple[str, str]]) -> list[int]:
        """The tokens of other files before an infill prompt. Each file follows its name, or a separator line."""
        project, name = self.tokenizer.vocabulary.of_project, self.tokenizer.vocabulary.of_file
        if not files:
            return []
        if name is None:
            return [token for _, text in files for token in self.tokenize(f"\n\n--- snippet ---\n\n{text}")]
        head = [] if project is None else [project, *self.tokenize("project\n")]
        whole = [*files, ("filename", "")]
        return [*head, *(token for path, text in whole for token in (name, *self.tokenize(f"{path}\n{text}")))]

    # ------------------------------------------------------------ chat formats

    def default_settings(self, usual: Settings) -> Settings:
        """The settings that apply if a request gives no others: the defaults, replaced by those of the preset."""
        return usual if self.preset is None else {**usual, **self.preset.settings}  # type: ignore[typeddict-item]

    @property
    def has_chat_format(self) -> bool:
        """True if `chat_format` is compiled already."""
        return "chat_format" in self.__dict__

    @cached_property
    def chat_format(self) -> ChatFormat:
        """The chat format of the model's own template, or of its preset's."""
        return self._format(self._template(None if self.preset is None else self.preset.template))

    def chat_format_of(self, template: str | ChatTemplate | None) -> ChatFormat:
        """The chat format of another template: the name of a built-in one, or jinja2 source."""
        if template is None:
            return self.chat_format
        if isinstance(template, str):
            template = self._template(template)
        if not isinstance(template, ChatTemplate):
            raise BadInput(f"template is {template!r}; it must be a name, a jinja2 source or a ChatTemplate")
        return self._format(template)

    # ------------------------------------------------------------ embeddings

    def embedding_work(
        self, texts: Sequence[Sequence[int]], dimensions: int | None = None
    ) -> Callable[[Engine], Generator[None, None, Floats]]:
        """Returns a generator function for the engine's thread that embeds texts: [N, D]"""
        size = validate.number("dimensions", dimensions, validate.DIMENSIONS)
        return partial(measures.embeddings, texts=texts, pooling=self._pooling, dimensions=size)

    def ranking_work(self, texts: Sequence[Sequence[int]]) -> Callable[[Engine], Generator[None, None, Doubles]]:
        """Returns a generator function for the engine's thread that scores documents: [N]"""
        return partial(measures.ranks, texts=texts, pooling=self._pooling)

    def prepare_ranking(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """Checks and tokenises the query and documents of a ranking; computes nothing."""
        if self._pooling.classifier is None:
            raise BadInput("this model ranks no documents; use a reranker, such as bge-reranker or Qwen3-Reranker")
        if not isinstance(query, str):
            raise BadInput(f"query is of type {type(query).__name__}; it must be a string")
        if not documents:
            raise BadInput("documents is empty; give at least one")
        found = []
        for at, document in enumerate(validate.several("documents", documents, "documents")):
            if not isinstance(document, str):
                raise BadInput(f"documents[{at}] is of type {type(document).__name__}; it must be a string")
            ids = ranking_ids(self.tokenizer, self._metadata, query, document, self.context)
            found.append(self._ids(ids, name=f"documents[{at}]"))
        return found

    def prepare_decisions(self, state: Any, questions: Any) -> Asked:
        """Checks and tokenises a state and questions about it; computes nothing."""
        if self._decision_head is None:
            raise BadInput("this model decides nothing; use a decision model, such as Clef")
        asked = Asked.of(self.tokenizer, state, questions)
        self._ids(asked.ids, name="state and questions")
        return asked

    def decision_work(self, asked: Asked) -> Callable[[Engine], Generator[None, None, Floats]]:
        """Returns a generator function for the engine's thread that reads the text: a row for each token, [T, D]"""
        return partial(measures.rows, ids=asked.ids)

    def decided(self, asked: Asked, rows: Floats) -> dict[str, Any]:
        """The answers, from the rows of a text. It takes a while, in any thread."""
        assert self._decision_head is not None, "prepare_decisions has checked it"
        return asked.answers(self._decision_head(rows, asked))

    def _texts(self, name: str, texts: Sequence[Prompt], *, truncate: bool = False) -> list[list[int]]:
        """Tokenises texts for embedding; special tokens in them are matched.

        With `truncate`, a text that is too long is cut before its final EOS token.
        """
        found = []
        for at, text in enumerate(texts):
            if truncate and isinstance(text, str) and self.context is not None:
                text = self.tokenizer.cut(text, self.context + 1)
            elif not truncate:
                self._check_length(text)
            ids = self._tokens(text, f"{name}[{at}]", parse=True)
            if truncate and self.context is not None and len(ids) > self.context:
                ids[self.context - 1 :] = ids[-1:] if self.tokenizer.add_eos else [ids[self.context - 1]]
            if not ids:
                raise BadInput(f"{name}[{at}] is empty; give a text")
            found.append(self._ids(ids, name=f"{name}[{at}]"))
        return found

    # ------------------------------------------------------------ inside

    def _salt(self, cache_salt: str, ids: Sequence[int], *, once: bool = False) -> Salt:
        """The salt of a prompt. A shared prompt at its beginning has none."""
        if once:
            return replace(Salt.of(cache_salt), once=True)
        if not cache_salt:
            return PLAIN
        key = key_of(ids) if self._shared else b""
        return Salt.of(cache_salt, max((len(one) // TOKEN for one in self._shared if key.startswith(one)), default=0))

    def _start(self, reading: type[R], asked: PromptRequest, **more: Any) -> R:
        return self._read(reading, *self._request(asked, wait=waits(reading)), **more)

    def _request(self, asked: PromptRequest, *, wait: bool) -> tuple[Request, Reader]:
        """The request to the engine, and the reader of its answer. `wait` waits until a form is compiled."""
        ids, params, shape, is_turn, salt, images, text = asked
        check_ends(params, shape)
        left = budget(params, len(ids), self.context)
        grammar = None if shape is None else self._grammars.grammar(shape, budget=left, wait=wait, salt=salt.number)
        ends = self.tokenizer.stop_ids | (frozenset() if grammar is None else grammar.stop_ids)
        stops = params.stop
        if is_turn:
            ends |= self.chat_format.stop_ids
        if is_turn and not params.ignore_eos:
            stops = (*stops, *(() if shape else self.chat_format.ends))
        chosen = params.ending_at(ends, self.tokenizer.suppressed)
        request = Request(ids, chosen, grammar, images=images, salt=salt)
        closes, schema = closing(self.tokenizer, shape), None if shape is None else shape.model
        return request, Reader(self.tokenizer, Ends(stops), closing=closes, schema=schema, prompt=text)

    @cached_property
    def _grammars(self) -> Grammars:
        """Compiles schemas, regular expressions and grammars."""
        return Grammars(self.tokenizer, self.vocab_size, pool=self._grammar_pool)

    def _template(self, name: str | None = None) -> ChatTemplate:
        if self.info.encoder:
            raise BadInput(DECIDES if self._decision_head else ENCODER)
        return ChatTemplate.from_metadata(self._metadata, name=name)

    def _format(self, template: ChatTemplate) -> ChatFormat:
        pool = self._grammar_pool
        return ChatFormat(
            self.tokenizer, template, self.vocab_size, context=self.context, pool=pool, media_input=self.media_input
        )

    def _read(self, reading: Callable[..., R], request: Request, reader: Reader, **more: Any) -> R:
        """Starts a request. The object that reads it keeps the model open."""
        return reading(self._driver, request, reader, owner=self, **more)

    def _check_length(self, *prompts: Any) -> None:
        """Refuses prompts whose texts do not fit the context together, before they are tokenised."""
        parts = itertools.chain(*(prompt if isinstance(prompt, list | tuple) else [prompt] for prompt in prompts))
        texts = (part for part in parts if isinstance(part, str))
        check_length(self.tokenizer.fewest_tokens(*texts), self.context, least=True)

    def _tokens(self, prompt: Prompt, name: str, *, parse: bool = False) -> list[int]:
        if isinstance(prompt, TemplateText):
            return self.tokenize(prompt, parse=True)
        if isinstance(prompt, str):
            return self.tokenize(prompt, special=True, parse=parse)
        if is_mixed(prompt):
            begins: list[Any] = [self.tokenizer.bos] if isinstance(prompt[0], str) and self.tokenizer.add_bos else []
            parts = [self.tokenize(one, parse=parse) if isinstance(one, str) else [one] for one in prompt]
            return validate.token_ids(name, [*begins, *itertools.chain(*parts)])
        return validate.token_ids(name, prompt)

    def _ids(
        self,
        prompt: Prompt,
        truncate: Truncate | None = None,
        answer: int = 0,
        *,
        name: str = "prompt",
        parse: bool = False,
    ) -> list[int]:
        """Tokenises a prompt and checks that it fits; `truncate` keeps its end, with room for an answer if possible."""
        if truncate is None:
            self._check_length(prompt)
        elif isinstance(prompt, str) and self.context is not None:
            prompt = self.tokenizer.cut(prompt, self.context + 1, left=True)
        ids = self._tokens(prompt, name, parse=parse)
        if (
            validate.one_of("truncate", truncate, "left")
            and self.context is not None
            and len(ids) > self.context - answer
        ):
            ids = ids[-max(self.context - answer, (self.context + 1) // 2) :]
        Request(ids).check(self.vocab_size, self.context)
        return ids

    def _ids_and_images(self, prompt: Prompt | ImagePrompt) -> tuple[list[int], list[Span]]:
        """Tokenises a prompt that may have special tokens and images, and checks that it fits."""
        if not isinstance(prompt, ImagePrompt):
            return self._ids(prompt, parse=True), []
        self._check_length(prompt.text)
        text, images = prompt.marked(self.media_input)
        assert self.media_input is not None, "it has seen the images"
        ids = [*Transcript().prompt(self.media_input.tokenizer(self.tokenizer, images), [text]).ids]
        spans = spans_of(ids, images)
        Request(ids, images=spans).check(self.vocab_size, self.context)
        return ids, spans


def is_several(prompt: Any) -> bool:
    """True for a list of prompts: texts, or lists of token ids and texts."""
    if isinstance(prompt, str | bytes) or not isinstance(prompt, Sequence | np.ndarray) or not len(prompt):
        return False
    if is_mixed(prompt):
        return False
    return isinstance(prompt[0], str | ImagePrompt | list | tuple | np.ndarray | range)


def is_mixed(prompt: Any) -> bool:
    """True for a prompt of texts and token ids in a list."""
    return isinstance(prompt, list | tuple) and {*map(type, prompt)} == {str, int}


def prompts_of(name: str, prompt: Any) -> list[Any]:
    """Converts a prompt or a list of prompts to a list."""
    return validate.several(name, prompt, "prompts") if is_several(prompt) else [prompt]
