"""The sampling settings with their ranges. Independent of logits."""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput


@dataclass(frozen=True)
class Span:
    """The allowed range of a numeric field."""

    low: float
    high: float
    whole: bool = False
    above: bool = False  # excludes low itself
    optional: bool = False  # allows None

    def __contains__(self, value: object) -> bool:
        if value is None:
            return self.optional
        plain = type(value) is int or (type(value) is float and not self.whole)  # numbers.Number would take 2 µs
        if not plain and (isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real)):
            return False
        number: Any = value
        return bool(self.low <= number <= self.high) and not (self.above and number == self.low)

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low = f"above {self.low} and at most" if self.above else f"from {self.low} to"
        return f"{kind} {low} {self.high}" + (", or None" if self.optional else "")


LogitsProcessor = Callable[[npt.NDArray[np.int32], npt.NDArray[np.float32]], npt.ArrayLike]
MIROSTAT_TAU = 5.0  # target surprise in bits if mirostat is on without one, as in llama.cpp
IDS = 1 << 31  # upper bound of token ids
SPANS = {
    "temperature": Span(0, 1000),
    "top_k": Span(0, IDS, whole=True),
    "top_p": Span(0, 1, above=True),
    "min_p": Span(0, 1),
    "typical_p": Span(0, 1, above=True),
    "repetition_penalty": Span(0.001, 1000),
    "presence_penalty": Span(-100, 100),
    "frequency_penalty": Span(-100, 100),
    "penalty_decay": Span(0, 1),
    "penalty_last_n": Span(-1, IDS, whole=True),
    "dry_multiplier": Span(0, 100),
    "dry_base": Span(1, 100),
    "dry_allowed_length": Span(1, IDS, whole=True),
    "dry_last_n": Span(-1, IDS, whole=True),
    "xtc_probability": Span(0, 1),
    "xtc_threshold": Span(0, 1),
    "mirostat_tau": Span(0, 100),
    "mirostat_eta": Span(0, 1, above=True),
    "seed": Span(0, 2**64 - 1, whole=True, optional=True),
    "max_tokens": Span(0, IDS, whole=True),
    "min_tokens": Span(0, IDS, whole=True),
    "logprobs": Span(0, 1000, whole=True),
    "draft_tokens": Span(0, 15, whole=True, optional=True),
}
ID = Span(0, IDS - 1, whole=True)
BIAS = Span(-1000, 1000)


@dataclass(frozen=True, repr=False)
class SamplingParams:
    """How tokens are chosen, and when to stop. The defaults sample from the model's own distribution.

    The order is logits_processors, logit_bias, penalties, DRY, top_k, typical_p, top_p, min_p, XTC, temperature, draw.
    """

    temperature: float = 1.0
    """Divides the logits before the draw; 0 is greedy."""
    top_k: int = 0
    """Keeps the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Nucleus sampling: keeps the most likely tokens up to this probability mass; 1 keeps all."""
    min_p: float = 0.0
    """Keeps tokens with at least this fraction of the highest probability."""
    typical_p: float = 1.0
    """Locally typical sampling: the probability mass to keep; 1 keeps all."""
    repetition_penalty: float = 1.0
    """For seen tokens: logit / penalty, or logit · penalty if the logit is below 0."""
    presence_penalty: float = 0.0
    """For seen tokens: logit - penalty."""
    frequency_penalty: float = 0.0
    """For seen tokens: logit - count · penalty."""
    penalty_decay: float = 1.0
    """Below 1, counts fade by this factor per token. Usual for RWKV: 0.996."""
    penalty_last_n: int = 64
    """Number of last tokens that the penalties consider; -1 is all, and so is a decay below 1."""
    dry_multiplier: float = 0.0
    """For a token that continues a repetition of n tokens: logit - multiplier · base^(n - allowed length)."""
    dry_base: float = 1.75
    """Base of the DRY penalty."""
    dry_allowed_length: int = 2
    """Longest repetition without a DRY penalty, in tokens."""
    dry_last_n: int = -1
    """Number of last tokens that DRY considers; -1 is all."""
    dry_breakers: frozenset[int] = frozenset()
    """Tokens that end a repetition."""
    xtc_probability: float = 0.0
    """Probability of dropping all tokens with at least `xtc_threshold`, except the least likely of them."""
    xtc_threshold: float = 0.1
    """Probability from which XTC may drop a token."""
    mirostat_tau: float = 0.0
    """Target surprise of mirostat v2 in bits, which replaces top_k to XTC; 0 is off."""
    mirostat_eta: float = 0.1
    """Learning rate of mirostat."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Numbers to add to the logits of token ids; -inf bans a token."""
    logits_processors: tuple[LogitsProcessor, ...] = ()
    """Functions of the token ids so far, [T], and the logits, [V], that return new logits. They run on the host."""
    seed: int | None = None
    """Seed of the draws; None is random."""
    max_tokens: int = 256
    """Maximum number of generated tokens."""
    min_tokens: int = 0
    """Number of tokens before which no stop id is sampled."""
    ignore_eos: bool = False
    """Whether the tokens that end an answer are banned."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer. They are not part of it."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the answer."""
    logprobs: int = 0
    """Number of most likely tokens to report with each token."""
    post_sampling_probs: bool = False
    """Whether reported probabilities are those of the distribution that the token is drawn from."""
    lora: Mapping[str, float] | None = field(default=None, hash=False)
    """Scale of each adapter by name; None uses the scales of `load`."""
    draft_tokens: int | None = None
    """Maximum tokens drafted at a time, up to the limit of `load`; 0 disables drafts."""

    def __post_init__(self) -> None:
        for name, span in SPANS.items():
            value = getattr(self, name)
            if value is DEFAULTS[name]:
                continue
            if value not in span:
                raise BadInput(f"{name} is {value!r}; it must be {span}")
            if value is not None:
                object.__setattr__(self, name, int(value) if span.whole else float(value))
        for name in ("ignore_eos", "post_sampling_probs"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"{name} is {getattr(self, name)!r}; it must be True or False")
        object.__setattr__(self, "dry_breakers", _token_ids("dry_breakers", self.dry_breakers))
        object.__setattr__(self, "stop_ids", _token_ids("stop_ids", self.stop_ids))
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        object.__setattr__(self, "lora", _adapters(self.lora))
        object.__setattr__(self, "logits_processors", _processors(self.logits_processors))

    def ending_at(self, ids: frozenset[int], without: frozenset[int] = frozenset()) -> "SamplingParams":
        """A copy with more stop ids, and with banned tokens. Skips checks that were done before."""
        if self.ignore_eos:
            ids, without = frozenset(), without | ids
        if ids <= self.stop_ids and not without:
            return self
        biases = MappingProxyType(dict(self.logit_bias) | dict.fromkeys(without, -math.inf))
        more = object.__new__(SamplingParams)
        more.__dict__.update(self.__dict__, stop_ids=self.stop_ids | ids, logit_bias=biases)
        return more

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        changed = (f"{one.name}={_shown(getattr(self, one.name))}" for one in fields(self) if not self._is_default(one))
        return f"SamplingParams({', '.join(changed)})"

    def _is_default(self, one: Field[Any]) -> bool:
        default = one.default if one.default is not MISSING else {}
        return bool(getattr(self, one.name) == default)

    @property
    def penalises(self) -> bool:
        """True if a penalty changes the logits of earlier tokens."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def check_vocabulary(self, size: int) -> None:
        """Refuses token ids outside a vocabulary of `size`."""
        for name in ("logit_bias", "stop_ids", "dry_breakers"):
            for token in getattr(self, name):
                if token >= size:
                    raise BadInput(f"{name} names token {token}; the vocabulary has 0 to {size - 1}")


DEFAULTS = {one.name: one.default for one in fields(SamplingParams)}  # used by the checks


def _listed(value: Any) -> list[Any]:
    """Converts one value or several to a list."""
    if not isinstance(value, str | bytes | Mapping) and isinstance(value, Iterable):
        with suppress(TypeError):  # numpy's 0-dimensional arrays only appear iterable
            return list(value)
    return [value]


def _token_ids(name: str, value: Any) -> frozenset[int]:
    ids = _listed(value)
    for token in ids:
        if token not in ID:
            raise BadInput(f"{name} holds {token!r}; token ids must each be {ID}")
    return frozenset(int(token) for token in ids)


def _stop_strings(value: Any) -> tuple[str, ...]:
    stops = _listed(value)
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise BadInput(f"stop holds {stop!r}; it must be strings of at least one character")
    return tuple(stops)


def _biases(value: Any) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise BadInput(f"logit_bias is {value!r}; it must map token ids to numbers")
    for token, bias in value.items():
        if token not in ID:
            raise BadInput(f"logit_bias names {token!r}; token ids must each be {ID}")
        if bias not in BIAS and not (isinstance(bias, Real) and bias == -math.inf):
            raise BadInput(f"logit_bias of token {token} is {bias!r}; it must be {BIAS}, or -inf to ban the token")
    return MappingProxyType({int(token): float(bias) for token, bias in value.items()})


def _adapters(value: Any) -> Mapping[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise BadInput(f"lora is {value!r}; it must map names of adapters to scales")
    for name, scale in value.items():
        if not isinstance(name, str) or scale not in BIAS:
            raise BadInput(f"lora of {name!r} is {scale!r}; it must be {BIAS}")
    return MappingProxyType({name: float(scale) for name, scale in value.items()})


def _processors(value: Any) -> tuple[LogitsProcessor, ...]:
    processors = (value,) if callable(value) else tuple(_listed(value))
    for processor in processors:
        if not callable(processor):
            raise BadInput(f"logits_processors holds {processor!r}; each must be a function of token ids and logits")
    return processors


def _shown(value: Any) -> str:
    """A value, formatted for display."""
    return repr(dict(value) if isinstance(value, Mapping) else set(value) if isinstance(value, frozenset) else value)
