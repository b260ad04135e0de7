"""Text completions in OpenAI's format: request fields and reply dicts. Uses no engine."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine.sampling_params import SamplingParams
from ..errors import BadInput
from ..text.base import Tokenizer
from ..text.grammar import Form
from .answer import PromptProgress
from .chat_completion import (
    FINGERPRINT,
    Json,
    cache_field,
    common_fields,
    prompt_progress,
    reports,
    salt_field,
    settings_of,
    usage,
)
from .completion import Completion, Event, Settings, Stats, form, json_logprob, sampling
from .measures import Score
from .transcript import as_bytes
from .unique import unique
from .validate import truth

DEFAULTS: Settings = {"temperature": 1.0, "max_tokens": 16}  # OpenAI's defaults


@dataclass(frozen=True)
class TextFields:
    """The fields of a request, except its prompts."""

    params: SamplingParams
    form: Form | None
    n: int
    echo: bool  # the reply's text starts with the prompt
    logprobs: bool
    usage: bool  # whether a stream ends with a chunk of usage
    model: str | None
    generates: bool = True  # False if max_tokens is 0: the prompt is only echoed
    cache_salt: str = ""  # prefixes are shared with requests of the same salt
    caches: bool = True  # whether stored prefixes are used, and the prompt's is stored
    progress: bool = False  # whether a stream reports how much of the prompt is read
    timings: bool = False  # whether each chunk of a stream has timings
    suffix: str = ""  # text that follows the answer

    @property
    def scores(self) -> bool:
        """True if prompt tokens get log probabilities too."""
        return self.echo and self.logprobs

    @classmethod
    def read(cls, given: Mapping[str, Any], defaults: Settings = DEFAULTS) -> "TextFields":
        """Checks keyword arguments of OpenAI's API; raises BadInput that names a wrong one. None counts as left out."""
        rest = settings_of(given)
        n, in_stream, model = common_fields(rest)
        echo, logprobs = bool(truth("echo", rest.pop("echo", None))), "logprobs" in rest
        best_of, salt, caches = rest.pop("best_of", n), salt_field(rest), cache_field(rest)
        if best_of != n:
            raise BadInput(f"best_of is {best_of!r}; it must equal n, which is {n}, because all answers are returned")
        suffix, (progress, timings) = rest.pop("suffix", ""), reports(rest)
        if not isinstance(suffix, str):
            raise BadInput(f"suffix is {suffix!r:.80}; it must be a string")
        if suffix and echo:
            raise BadInput("suffix and echo are both given; a text that is filled in has no prompt to echo")
        generates = not (echo and rest.get("max_tokens") == 0 and rest["max_tokens"] is not False)
        if not generates:
            del rest["max_tokens"]
        params = sampling(None, defaults, rest)
        return cls(
            params, form(rest), n, echo, logprobs, in_stream, model, generates, salt, caches, progress, timings, suffix
        )


@dataclass(frozen=True)
class TextReply:
    """One reply: the data shared by all its dicts."""

    fields: TextFields
    tokenizer: Tokenizer
    model: str
    prompts: Sequence[str]  # their texts, for `echo`
    ids: Sequence[Sequence[int]] = ()  # their tokens
    scores: Sequence[Sequence[Score]] = ()  # the scores of each prompt, if requested
    id: str = field(default_factory=lambda: f"cmpl-{unique()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answers: Sequence[tuple[Completion, Sequence[Event]]]) -> Json:
        """All answers at once, n per prompt; empty ones if nothing is generated."""
        if not answers:
            each = [Completion("", (), "length", Stats(len(ids), 0, 0, 0.0, 0.0)) for ids in self.ids]
            answers = [(completion, ()) for completion in each for _ in range(self.fields.n)]
        choices = [
            self._choice(index, self._echo(index) + completion.text, events, completion.finish_reason, begins=True)
            for index, (completion, events) in enumerate(answers)
        ]
        completions = [completion for completion, _ in answers]
        timings = completions[0].stats.timings
        return {**self._head(), "choices": choices, "usage": self._usage(completions), "timings": timings}

    def opening(self, index: int) -> Iterator[Json]:
        """Chunks before the first event of an answer."""
        if self.fields.echo:
            yield self._chunk(index, self._echo(index), [], None, begins=True)

    def chunks(self, index: int, event: Event) -> Iterator[Json]:
        """The chunks of an event; none if it has nothing to show."""
        if event.text or (self.fields.logprobs and event.token is not None):
            yield self._chunk(index, event.text, [event], None)

    def progress(self, index: int, done: PromptProgress, stats: Stats) -> Json:
        """A chunk that reports how much of the prompt is read."""
        return {**self._chunk(index, "", [], None), **prompt_progress(done, stats, timings=self.fields.timings)}

    def closing(self, index: int, completion: Completion) -> Iterator[Json]:
        """The last chunk of an answer."""
        yield {**self._chunk(index, "", [], completion.finish_reason), "timings": completion.stats.timings}

    def last(self, completions: Sequence[Completion]) -> Iterator[Json]:
        """The usage chunk, if requested."""
        if self.fields.usage:
            timings = {"timings": completions[0].stats.timings} if completions else {}
            yield {**self._head(), "choices": [], "usage": self._usage(completions), **timings}

    def _head(self) -> Json:
        model = self.fields.model or self.model
        return {
            "id": self.id, "object": "text_completion", "created": self.created, "model": model,
            "system_fingerprint": FINGERPRINT,
        }  # fmt: skip

    def _echo(self, index: int) -> str:
        return self.prompts[index // self.fields.n] if self.fields.echo else ""

    def _chunk(
        self, index: int, text: str, events: Sequence[Event], reason: str | None, *, begins: bool = False
    ) -> Json:
        return {**self._head(), "choices": [self._choice(index, text, events, reason, begins=begins)]}

    def _choice(self, index: int, text: str, events: Sequence[Event], reason: str | None, *, begins: bool) -> Json:
        logprobs = self._logprobs(index, events, begins=begins)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, index: int, events: Sequence[Event], *, begins: bool) -> Json | None:
        """Log probabilities of the tokens of events; if the text begins with the prompt, of its tokens too."""
        if not self.fields.logprobs:
            return None
        echoed = self._echo(index)
        of_prompt = self._of_prompt(index // self.fields.n) if begins and self.scores else []
        offset, found = len(echoed), []
        for event in events:
            if event.token is not None:
                top = {self._text(token): json_logprob(logprob) for token, logprob in event.top}
                found.append((self._text(event.token), json_logprob(event.logprob), top, offset))
            offset += len(event.text)
        rows = [*of_prompt, *found]
        if not rows:
            return None
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}

    def _of_prompt(self, number: int) -> list[tuple[str, float | None, dict[str, float] | None, int]]:
        """Log probabilities of a prompt's tokens; None for the first."""
        rows: list[tuple[str, float | None, dict[str, float] | None, int]] = []
        nbytes, data = 0, as_bytes(self.prompts[number])
        for token, score in zip(self.ids[number], (None, *self.scores[number]), strict=True):
            offset = len(data[:nbytes].decode("utf-8", "ignore"))
            nbytes += len(self.tokenizer.piece(token))
            if score is None:
                rows.append((self._text(token), None, None, offset))
            else:
                top = {self._text(one): json_logprob(logprob) for one, logprob in score.top}
                rows.append((self._text(token), json_logprob(score.logprob), top, offset))
        return rows

    def _text(self, token: int | None) -> str:
        """A token as a dict key: its text, or its bytes if they are not whole characters."""
        data = b"" if token is None else self.tokenizer.piece(token, special=True)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _usage(self, completions: Sequence[Completion]) -> Json:
        """Tokens of all prompts, each counted once, and of all answers."""
        n = self.fields.n
        each = [usage(completions[at : at + n]) for at in range(0, len(completions), n)]
        total = {
            name: sum(one[name] for one in each) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        }
        cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in each)
        return {**total, "prompt_tokens_details": {"cached_tokens": cached}}
