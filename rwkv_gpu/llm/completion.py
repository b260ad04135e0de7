"""What a generation gives: its events one by one, and the whole with what it took. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from ..engine.sampling_params import SamplingParams
from ..errors import BadInput
from ..text.grammar import Form

Reason = Literal["running", "stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """A token that was said, and text that became certain by it. What is held back comes later, without a token."""

    text: str
    token: int | None
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens and their log probabilities, as `logprobs` asks for
    thinking: bool = False  # whether the text is a thought, in a chat


@dataclass(frozen=True)
class Stats:
    """What a generation took."""

    prompt_tokens: int
    reused_tokens: int  # of the prompt, that were not computed again
    new_tokens: int
    prompt_seconds: float  # until the first new token, without compiling shaders
    decode_seconds: float

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens that were computed, a second."""
        return (self.prompt_tokens - self.reused_tokens) / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """New tokens a second, the first of them apart: it comes with the prompt."""
        return (self.new_tokens - 1) / self.decode_seconds if self.decode_seconds and self.new_tokens > 1 else 0.0


@dataclass(frozen=True)
class Completion:
    """What a model said."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: Reason  # stop, length or abort; running while more may come
    stats: Stats
    reasoning: str = ""  # what it thought before, in a chat


class Settings(TypedDict, total=False):
    """How to answer, as keyword arguments: the fields of SamplingParams, and a form that answers must have."""

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
    seed: int | None
    max_tokens: int
    stop: Any  # a string, or several
    stop_ids: Any
    logprobs: int
    schema: str | bool | Mapping[str, Any] | None  # a JSON schema, or True for any JSON
    regex: str | None
    grammar: str | None  # Lark's, or GBNF's with `root ::=`


GREEDY: Settings = {"temperature": 0.0, "max_tokens": 128}  # where nothing is said
TALKING: Settings = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 2048}  # the same in a chat


FORMS = ("schema", "regex", "grammar")


def form(settings: Mapping[str, Any]) -> Form | None:
    """The form that answers must have, if one is given."""
    return Form.of(**{name: settings[name] for name in FORMS if name in settings})


def sampling(params: SamplingParams | None, defaults: Settings, settings: Mapping[str, Any]) -> SamplingParams:
    """The given params, or else the defaults, with these settings changed. BadInput names a field that is wrong."""
    if params is None:
        settings = {**defaults, **settings}
    settings = {name: value for name, value in settings.items() if name not in FORMS}
    unknown = settings.keys() - Settings.__annotations__.keys()
    if unknown:
        known = ", ".join(Settings.__annotations__)
        raise BadInput(f"{min(unknown)} is no setting; known: {known}")
    if params is None:
        return SamplingParams(**settings)
    if not isinstance(params, SamplingParams):
        raise BadInput(f"params is a {type(params).__name__}; it must be SamplingParams")
    given = {name: getattr(params, name) for name in Settings.__annotations__ if name not in FORMS}
    return SamplingParams(**{**given, **settings})
