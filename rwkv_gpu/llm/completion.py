"""Data of a generation: result, events, statistics, and the settings that callers give."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

from ..engine.sampling_params import SPANS, SamplingParams
from ..errors import BadInput
from ..text.grammar import Form
from .validate import unknown_name

Reason = Literal["running", "stop", "length", "abort", "error"]
MIN_LOGPROB = -9999.0  # replaces -inf, which JSON lacks, as in OpenAI's API


def json_logprob(logprob: float) -> float:
    """A log probability in JSON."""
    return max(logprob, MIN_LOGPROB)


@dataclass(frozen=True, slots=True)
class Event:
    """A generated token, and the text that it completes. Text that was withheld comes later, without a token."""

    text: str
    """New text of the answer; it may be empty."""
    token: int | None
    """The token id; None for text that was withheld before."""
    logprob: float
    """Log probability of the token under the model."""
    top: tuple[tuple[int, float], ...] = ()
    """The `logprobs` most likely tokens and their log probabilities."""
    thinking: bool = False
    """True if the text is reasoning, in a chat."""


@dataclass(frozen=True)
class Stats:
    """Counts and durations of a generation."""

    prompt_tokens: int
    """Tokens of the prompt."""
    reused_tokens: int
    """Prompt tokens that were not computed again."""
    new_tokens: int
    """Generated tokens."""
    prompt_seconds: float
    """Time until the first new token, without compiling shaders."""
    decode_seconds: float
    """Time from the first new token to the last."""
    drafted_tokens: int = 0
    """Drafted tokens that were verified."""
    accepted_tokens: int = 0
    """Drafted tokens that were right."""
    draft_gain: float | None = None
    """Speed of all steps with drafts so far, relative to steps without; None if it is not known."""

    def at(self, read: int) -> "Stats":
        """The statistics at the time when this many tokens of the prompt were read."""
        seconds = self.prompt_seconds if read > self.reused_tokens else 0.0
        return replace(self, prompt_tokens=read, prompt_seconds=seconds, new_tokens=0, decode_seconds=0.0)

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens computed per second."""
        return (self.prompt_tokens - self.reused_tokens) / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def timings(self) -> dict[str, Any]:
        """Counts, milliseconds and rates under the names of llama-server."""
        prompt = self.prompt_tokens - self.reused_tokens
        drafts = {"draft_n": self.drafted_tokens, "draft_n_accepted": self.accepted_tokens}
        return {
            "cache_n": self.reused_tokens,
            "prompt_n": prompt,
            "prompt_ms": 1e3 * self.prompt_seconds,
            "prompt_per_token_ms": 1e3 * self.prompt_seconds / prompt if prompt else 0.0,
            "prompt_per_second": self.prompt_rate,
            "predicted_n": self.new_tokens,
            "predicted_ms": 1e3 * self.decode_seconds,
            "predicted_per_token_ms": 1e3 * self.decode_seconds / self._steps if self._steps else 0.0,
            "predicted_per_second": self.decode_rate,
            **(drafts if self.drafted_tokens else {}),
        }

    @property
    def decode_rate(self) -> float:
        """New tokens per second."""
        return self._steps / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def _steps(self) -> int:
        """New tokens without the first one, which comes with the prompt."""
        return max(0, self.new_tokens - 1)


@dataclass(frozen=True, repr=False)
class Completion:
    """The result of a generation."""

    text: str
    """The generated text."""
    tokens: tuple[int, ...]
    """The generated token ids."""
    finish_reason: Reason
    """`stop`, `length` or `abort`; `running` while more may come."""
    stats: Stats
    """Counts and durations."""
    reasoning: str = ""
    """The reasoning before the answer, in a chat."""
    schema: Any = field(default=None, compare=False)
    """The pydantic class that was given as `schema`."""
    prompt: str | None = field(default=None, compare=False)
    """The text that `generate` or `stream` continued, if it is not a list of ids."""

    @property
    def parsed(self) -> Any:
        """The answer read as JSON; if `schema` was a pydantic class, an instance of it."""
        try:
            return json.loads(self.text) if self.schema is None else self.schema.model_validate_json(self.text)
        except ValueError as error:
            why = "it was cut off; give a larger max_tokens" if self.truncated else " ".join(str(error).split())
            raise BadInput(f"the answer {shorten(self.text)} cannot be parsed: {why}") from None

    @property
    def outputs(self) -> tuple["Completion"]:
        """This completion alone, where vLLM has all answers to a prompt."""
        return (self,)

    @property
    def truncated(self) -> bool:
        """True if `max_tokens` or the context cut the answer before the model, a stop string or a grammar ended it."""
        return self.finish_reason == "length"

    def __repr__(self) -> str:
        """The beginning of its text, and why it ended."""
        return f"Completion({shorten(self.text)}, tokens={len(self.tokens)}, finish_reason={self.finish_reason!r})"


class Settings(TypedDict, total=False):
    """Settings as keyword arguments: the fields of `SamplingParams`, and constraints of the answer.

    The names that other libraries have for these settings are accepted, too: docs/library.md lists them.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_decay: float
    penalty_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_last_n: int
    dry_breakers: Any
    xtc_probability: float
    xtc_threshold: float
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: Mapping[int, float]
    logits_processors: Any  # a function of token ids and logits, or several
    seed: int | None
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop: Any  # a string, or several
    stop_ids: Any
    logprobs: int
    post_sampling_probs: bool
    lora: Mapping[str, float] | None
    draft_tokens: int | None
    schema: Any
    """A JSON schema, a pydantic class, or True for any JSON."""
    regex: str | None
    """A regular expression for the whole answer."""
    grammar: str | None
    """A grammar in Lark, or in GBNF with `root ::=`."""
    # The same settings under other libraries' names: see ALIASES.
    temp: float
    max_new_tokens: int
    n_predict: int
    repeat_penalty: float
    repeat_last_n: int
    repetition_context_size: int
    stop_token_ids: Any
    logits_processor: Any
    guided_json: Any
    guided_regex: str
    guided_grammar: str


GREEDY: Settings = {"temperature": 0.0, "max_tokens": 128}  # the defaults
CHAT_DEFAULTS: Settings = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 2048}  # the defaults of a chat

FORMS = ("schema", "regex", "grammar")
ALIASES = {
    "temp": "temperature",  # mlx-lm, llama.cpp
    "max_new_tokens": "max_tokens",  # transformers
    "n_predict": "max_tokens",  # llama.cpp
    "repeat_penalty": "repetition_penalty",  # llama-cpp-python
    "repeat_last_n": "penalty_last_n",  # llama.cpp
    "repetition_context_size": "penalty_last_n",  # mlx-lm
    "stop_token_ids": "stop_ids",  # vLLM
    "logits_processor": "logits_processors",  # llama-cpp-python
    "guided_json": "schema",  # vLLM
    "guided_regex": "regex",
    "guided_grammar": "grammar",
}
KNOWN = tuple(name for name in Settings.__annotations__ if name not in ALIASES)
# Other libraries' values for None, 0 or the maximum.
ENDLESS = SPANS["max_tokens"].high
SAME = {("top_k", -1): 0, ("seed", -1): None, ("max_tokens", -1): ENDLESS, ("max_tokens", None): ENDLESS}


INSTEAD = {  # arguments of some methods, given to others, and of other libraries
    **dict.fromkeys(("system", "template", "think", "messages"), "llm.chat takes it"),
    **dict.fromkeys(("images", "audio"), "the send of a chat takes it"),
    "sampling_params": "give it as params",
    "image": "give images, a list, to the send of a chat",
    "prompt": "give it first, without a name",
    "truncate": "llm.generate and llm.chat take it",
}


def own_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Translates settings from other libraries' names and values to ours."""
    if not isinstance(settings, Mapping):
        raise BadInput(f"settings is a {type(settings).__name__}; it must map names to values")
    own: dict[str, Any] = {}
    for name, value in settings.items():
        ours = ALIASES.get(name, name)
        if ours in own:
            names = [one for one in settings if ALIASES.get(one, one) == ours]
            raise BadInput(f"{ours} is given twice, as {' and as '.join(map(str, names))}; give it once")
        plain = value is None or type(value) is int
        own[ours] = SAME.get((ours, value), value) if plain else value
    return own


def form(settings: Mapping[str, Any]) -> Form | None:
    """The schema, regular expression or grammar in the settings, if any."""
    settings = own_names(settings)
    return Form.of(**{name: settings[name] for name in FORMS if name in settings})


def sampling(params: SamplingParams | None, defaults: Settings, settings: Mapping[str, Any]) -> SamplingParams:
    """Returns these params, or the defaults, with the settings applied. Raises BadInput that names a wrong field."""
    settings = own_names(settings)
    if params is None:
        settings = {**own_names(defaults), **settings}
    settings = {name: value for name, value in settings.items() if name not in FORMS}
    unknown = settings.keys() - set(KNOWN)
    if unknown:
        known = (*KNOWN, *ALIASES, *INSTEAD)
        raise BadInput(unknown_name(min(unknown), "setting", known, "help(rwkv_gpu.SamplingParams)", INSTEAD))
    if params is None:
        return SamplingParams(**settings)
    if not isinstance(params, SamplingParams):
        raise BadInput(f"params is a {type(params).__name__}; it must be SamplingParams")
    given = {name: getattr(params, name) for name in KNOWN if name not in FORMS}
    return SamplingParams(**{**given, **settings})


def check_ends(params: SamplingParams, form: Form | None) -> None:
    """Refuses settings that forbid the end of an answer, if a form requires it."""
    if form is not None and (params.ignore_eos or params.min_tokens):
        name = "ignore_eos" if params.ignore_eos else "min_tokens"
        raise BadInput(f"{name} is {getattr(params, name)}, but the answer ends where its form ends; give one of them")


def seeded(params: SamplingParams, index: int) -> SamplingParams:
    """The params for one of several answers to a prompt; each has its own seed."""
    if params.seed is None or not index:
        return params
    return replace(params, seed=(params.seed + index) % (1 << 64))


def shorten(text: str, most: int = 60) -> str:
    """The beginning of a text, quoted."""
    return repr(text if len(text) <= most else text[: most - 1] + "…")
