"""Chat completions in OpenAI's format: request fields and reply dicts, whole or in chunks. Uses no engine."""

import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import rwkv_gpu

from ..engine.sampling_params import SamplingParams
from ..errors import BadInput
from ..text.base import Tokenizer
from ..text.grammar import Form
from ..text.tool_calls import GENERIC, ToolForm
from .answer import PromptProgress
from .completion import (
    ALIASES,
    CHAT_DEFAULTS,
    FORMS,
    Completion,
    Event,
    Settings,
    Stats,
    form,
    json_logprob,
    sampling,
    seeded,
)
from .reasoning_options import ReasoningOptions
from .tools import Calling, Tools
from .unique import unique
from .validate import truth

Json = dict[str, Any]
# OpenAI's names for fields of SamplingParams.
STRUCTURED = {"json": "schema", "regex": "regex", "grammar": "grammar"}  # names in vLLM's structured_outputs
RENAMED = {"max_completion_tokens": "max_tokens", "json_schema": "schema"}
MAX_VARIABLES = 1 << 16  # maximum characters of template variables
MOST = 128  # maximum answers per prompt, as in OpenAI's API
FINGERPRINT = f"rwkv-gpu-{rwkv_gpu.__version__}"
LONGEST_SALT = 1024  # characters of a cache salt
NO_REASONING_OPTIONS = ReasoningOptions()


@dataclass(frozen=True)
class RequestFields:
    """The fields of a request, except its messages."""

    params: SamplingParams
    form: Form | None
    n: int
    logprobs: bool
    usage: bool  # whether a stream ends with a chunk of usage
    model: str | None
    variables: Mapping[str, Any] = field(default_factory=dict)  # for the chat template
    continues: bool = False  # whether the answer continues the last message
    opens: bool = True  # whether the prompt opens an answer, unless it continues one
    progress: bool = False  # whether a stream reports how much of the prompt is read
    timings: bool = False  # whether each chunk of a stream has timings
    tools: Tools | None = None  # tools that the model may call
    cache_salt: str = ""  # prefixes are shared with requests of the same salt
    caches: bool = True  # whether stored prefixes are used, and the prompt's is stored
    reasoning: ReasoningOptions = NO_REASONING_OPTIONS

    @classmethod
    def read(
        cls,
        given: Mapping[str, Any],
        defaults: Settings = CHAT_DEFAULTS,
        reasoning: ReasoningOptions = NO_REASONING_OPTIONS,
    ) -> "RequestFields":
        """Checks keyword arguments of OpenAI's API; raises BadInput that names a wrong one. None counts as left out."""
        rest = settings_of(given)
        n, usage, model = common_fields(rest)
        variables = rest.pop("chat_template_kwargs", {})
        if not isinstance(variables, Mapping):
            raise BadInput(f"chat_template_kwargs is {variables!r}; it must map names to values")
        if len(repr(variables)) > MAX_VARIABLES:
            raise BadInput(f"chat_template_kwargs is too large; it may have {MAX_VARIABLES:,} characters at most")
        logprobs, top = rest.pop("logprobs", False), rest.pop("top_logprobs", 0)
        if not isinstance(logprobs, bool):
            raise BadInput(f"logprobs is {logprobs!r}; it must be true or false, and top_logprobs a number")
        if top and not logprobs:
            raise BadInput(f"top_logprobs is {top!r}, but logprobs is not true; set both")
        continues = bool(truth("continue_final_message", rest.pop("continue_final_message", None)))
        opens = truth("add_generation_prompt", rest.pop("add_generation_prompt", not continues)) is not False
        if opens and continues:
            raise BadInput("add_generation_prompt and continue_final_message are both true; give one of them")
        progress, timings = reports(rest)
        tools, salt, caches = Tools.read(rest), salt_field(rest), cache_field(rest)
        reasoning = reasoning.read(rest)
        params = sampling(None, defaults, {**rest, "logprobs": top})
        shape = form(rest)
        if tools is not None and shape is not None and not tools.required and shape.kind != "schema":
            raise BadInput("an answer that may call tools can have a JSON schema, but no grammar; give one of them")
        return cls(
            params, shape, n, logprobs, usage, model, {**reasoning.variables, **variables}, continues, opens, progress,
            timings, tools, salt, caches, reasoning,
        )  # fmt: skip

    def params_of(self, index: int) -> SamplingParams:
        """The params of one of several answers; each has its own seed."""
        return seeded(self.params, index)


def common_fields(rest: dict[str, Any]) -> tuple[int, bool, str | None]:
    """Takes n, include_usage and model out of the fields of a request."""
    n, options, model = rest.pop("n", 1), rest.pop("stream_options", {}), rest.pop("model", None)
    user = rest.pop("user", None)  # ignored: OpenAI's field for the end user of a service
    if not (user is None or isinstance(user, str)):
        raise BadInput(f"user is {user!r}; it must be a string")
    if not isinstance(options, Mapping):
        raise BadInput(f"stream_options is {options!r}; it must be a mapping, such as {{'include_usage': True}}")
    usage = truth("stream_options.include_usage", options.get("include_usage"))
    return answers(n), bool(usage), model


def salt_field(rest: dict[str, Any]) -> str:
    """Takes the cache salt out of the fields of a request."""
    salt = rest.pop("cache_salt", "")
    if not isinstance(salt, str) or len(salt) > LONGEST_SALT:
        raise BadInput(f"cache_salt must be a string of at most {LONGEST_SALT:,} characters")
    return salt


def cache_field(rest: dict[str, Any]) -> bool:
    """Takes the switch of the prefix cache out of the fields of a request."""
    return truth("cache_prompt", rest.pop("cache_prompt", None)) is not False


def reports(rest: dict[str, Any]) -> tuple[bool, bool]:
    """Takes the switches of a stream's reports out of the fields: progress of the prompt, and timings of each chunk."""
    progress, timings = (truth(name, rest.pop(name, None)) for name in ("return_progress", "timings_per_token"))
    return bool(progress), bool(timings)


def prompt_progress(done: PromptProgress, stats: Stats, *, timings: bool) -> Json:
    """How much of the prompt is read, under the names of llama-server, and the timings so far."""
    told = {"total": done.total, "cache": stats.reused_tokens, "processed": done.done}
    told["time_ms"] = round(1000 * stats.prompt_seconds)
    return {"prompt_progress": told, **({"timings": stats.at(done.done).timings} if timings else {})}


def answers(n: Any) -> int:
    """Checks the number of answers per prompt."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST:
        raise BadInput(f"n is {n!r}; it must be a whole number from 1 to {MOST}")
    return n


@dataclass(frozen=True)
class Reply:
    """One reply: the data shared by all its dicts."""

    fields: RequestFields
    tokenizer: Tokenizer
    model: str
    tool_form: ToolForm = GENERIC
    id: str = field(default_factory=lambda: f"chatcmpl-{unique()}")
    created: int = field(default_factory=lambda: int(time.time()))
    calling: dict[int, Calling] = field(default_factory=dict)  # parser of each streamed answer, if there are tools

    def whole(self, answers: Sequence[tuple[Completion, Sequence[Event]]]) -> Json:
        """The reply with all answers."""
        choices = [self._choice(index, *answer) for index, answer in enumerate(answers)]
        return {
            **self._head("chat.completion"),
            "choices": choices,
            "usage": usage([completion for completion, _ in answers]),
            "timings": answers[0][0].stats.timings,
        }

    def opening(self, index: int) -> Iterator[Json]:
        """Chunks before the first event of an answer."""
        yield self._chunk(index, {"role": "assistant", "content": ""}, None, [])

    def chunks(self, index: int, event: Event) -> Iterator[Json]:
        """The chunks of an event; none if it has nothing to show."""
        name = "reasoning_content" if event.thinking else "content"
        deltas: list[Json] = [{name: event.text}] if event.text else []
        if self.fields.tools is not None and not event.thinking:
            deltas = self._calling(index).feed(event.text)
        if self.fields.logprobs and event.token is not None:
            deltas = deltas or [{}]
        for n, delta in enumerate(deltas):
            yield self._chunk(index, delta, None, [] if n else [event])

    def progress(self, index: int, done: PromptProgress, stats: Stats) -> Json:
        """A chunk that reports how much of the prompt is read."""
        return {**self._chunk(index, {}, None, []), **prompt_progress(done, stats, timings=self.fields.timings)}

    def closing(self, index: int, completion: Completion) -> Iterator[Json]:
        """The last chunks of an answer."""
        reason: str = completion.finish_reason
        if self.fields.tools is not None:
            calling = self._calling(index)
            for delta in calling.flush(cut=completion.truncated):
                yield self._chunk(index, delta, None, [])
            reason = calling.reason(reason)
        yield {**self._chunk(index, {}, reason, []), "timings": completion.stats.timings}

    def last(self, completions: Sequence[Completion]) -> Iterator[Json]:
        """The usage chunk, if requested."""
        if self.fields.usage:
            more = {"usage": usage(completions), "timings": completions[0].stats.timings}
            yield {**self._head("chat.completion.chunk"), "choices": [], **more}

    def _head(self, kind: str) -> Json:
        model = self.fields.model or self.model
        return {
            "id": self.id, "object": kind, "created": self.created, "model": model, "system_fingerprint": FINGERPRINT,
        }  # fmt: skip

    def _choice(self, index: int, completion: Completion, events: Sequence[Event]) -> Json:
        message: Json = {"role": "assistant", "content": completion.text, "refusal": None}
        reason: str = completion.finish_reason
        if self.fields.tools is not None:
            calling = Calling(self.tool_form, self.fields.tools)
            calling.feed(completion.text)
            calling.flush(cut=completion.truncated)
            message, reason = {**message, **calling.message()}, calling.reason(reason)
        if completion.reasoning:
            message["reasoning_content"] = completion.reasoning
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(events),
            "finish_reason": reason,
        }

    def _calling(self, index: int) -> Calling:
        assert self.fields.tools is not None
        return self.calling.setdefault(index, Calling(self.tool_form, self.fields.tools))

    def _chunk(self, index: int, delta: Json, reason: str | None, events: Sequence[Event]) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": self._logprobs(events), "finish_reason": reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _logprobs(self, events: Sequence[Event]) -> Json | None:
        if not self.fields.logprobs or not events:
            return None
        content = [
            {**self._token(event.token, event.logprob), "top_logprobs": [self._token(*one) for one in event.top]}
            for event in events
            if event.token is not None
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> Json:
        data = self.tokenizer.piece(token, special=True)
        return {"token": data.decode("utf-8", "replace"), "logprob": json_logprob(logprob), "bytes": [*data]}


def usage(completions: Sequence[Completion]) -> Json:
    """Usage: tokens of the prompt, counted once, and of all answers."""
    stats = [completion.stats for completion in completions]
    prompt, new = stats[0].prompt_tokens, sum(one.new_tokens for one in stats)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": stats[0].reused_tokens},
    }


def in_turns(answers: Sequence[Iterator[Json]]) -> Iterator[Json]:
    """Yields one chunk of each answer in turn, until all have ended."""
    for row in itertools.zip_longest(*answers):
        yield from (chunk for chunk in row if chunk is not None)


def settings_of(given: Mapping[str, Any]) -> Json:
    """Translates keyword arguments of OpenAI's API to names of `Settings`. None counts as left out."""
    rest = {RENAMED.get(name, name): value for name, value in given.items() if value is not None}
    if "logit_bias" in rest:
        rest["logit_bias"] = _biases(rest["logit_bias"])
    if rest.get("grammar") == "":  # llama-server's clients send it for no grammar
        del rest["grammar"]
    asked = _response_format(rest.pop("response_format", None))
    structured = _structured(rest)
    forms = [name for name in (*FORMS, *ALIASES) if name in rest and ALIASES.get(name, name) in FORMS]
    forms += ["response_format"] * bool(asked) + ["structured_outputs"] * bool(structured)
    if len(forms) > 1:
        raise BadInput(f"{forms[0]} and {forms[1]} are both given; an answer can have one form only")
    return rest | asked | structured


def _structured(rest: Json) -> Json:
    """Takes vLLM's structured_outputs and guided_choice out of the fields of a request, as settings."""
    given, choice = rest.pop("structured_outputs", {}), rest.pop("guided_choice", None)
    if not isinstance(given, Mapping) or given.keys() - {*STRUCTURED, "choice", "json_object"}:
        raise BadInput(f"structured_outputs is {given!r:.80}; it must be an object with json, regex, choice or grammar")
    found = {STRUCTURED[name]: form for name, form in given.items() if name in STRUCTURED and form is not None}
    found |= {"schema": {"type": "object"}} if given.get("json_object") else {}
    for name, choices in (("guided_choice", choice), ("structured_outputs.choice", given.get("choice"))):
        if choices is not None:
            if not isinstance(choices, list) or not choices or not all(isinstance(one, str) and one for one in choices):
                raise BadInput(f"{name} is {choices!r:.80}; it must be a list of texts")
            found["grammar"] = "root ::= " + " | ".join(json.dumps(one, ensure_ascii=False) for one in choices)
    return found


def _biases(given: Any) -> Any:
    """Logit biases by token id. Ids may be strings, as JSON keys are; as in llama-server, false bans a token, and pairs
    may replace the map.
    """
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        return {
            int(token) if isinstance(token, str) else token: -math.inf if bias is False else bias
            for token, bias in pairs
        }
    except (TypeError, ValueError):
        raise BadInput(f"logit_bias is {given!r:.80}; it must map token ids to numbers, or false to ban them") from None


def _response_format(given: Any) -> Json:
    """Converts a response_format of OpenAI's API to settings."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if given is None or given == {} or kind == "text":
        return {}
    if kind == "json_object":
        schema = given.get("schema")
        if schema is not None and not isinstance(schema, Mapping):
            raise BadInput(f"response_format.schema is {schema!r}; it must be a JSON schema")
        return {"schema": schema or {"type": "object"}}
    described = given.get("json_schema", given) if kind == "json_schema" else None
    if isinstance(described, Mapping) and isinstance(described.get("schema"), Mapping):
        return {"schema": described["schema"]}
    raise BadInput(
        f"response_format is {given!r}; it must have the type text, json_object, or json_schema with a schema in it"
    )
