"""What is asked of the engine, and what it tells: requests in, news of them out. Knows token ids only."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import BadInput, ContextFull, RwkvGpuError
from .sampling import Sampled
from .sampling_params import SamplingParams


class Grammar(Protocol):
    """Which tokens may come next."""

    @property
    def done(self) -> bool:
        """Whether nothing more can be said."""

    def mask(self) -> npt.NDArray[np.uint32]:
        """A bit for each token, set where it is allowed. [ceil(V / 32)]"""

    def accept(self, token: int) -> None:
        """Takes note of a token that was said."""


@dataclass(frozen=True)
class Request:
    """A prompt to continue, and how."""

    ids: Sequence[int]  # at least one
    params: SamplingParams = field(default_factory=SamplingParams)
    grammar: Grammar | None = None
    keep: bool = False  # leave what makes a continuation of prompt and answer cost its new tokens only
    marks: Sequence[int] = ()  # with `keep`: lengths of the prompt at which it may be continued otherwise

    def check(self, vocabulary: int, context: int | None) -> None:
        """Refuses a prompt that the model cannot take."""
        if len(self.ids) == 0:
            raise BadInput("the prompt has no tokens; give at least one")
        if context is not None and len(self.ids) > context:
            raise ContextFull(
                f"a prompt of {len(self.ids):,} tokens does not fit the context of {context:,}; "
                "shorten it, or load the model with a larger context"
            )
        for at, token in enumerate(self.ids):
            if not 0 <= token < vocabulary:
                raise BadInput(f"token id {token} at place {at} is not in the vocabulary of {vocabulary:,}")


class Update(NamedTuple):
    """News of one request."""

    id: int
    sampled: tuple[Sampled, ...]  # new tokens, in order; a stop id is not among them
    prompt_done: int  # tokens of the prompt that were fed so far, of all
    prompt_tokens: int
    reused: int  # of them, taken from what other requests left
    finish_reason: str | None  # stop, length, abort or error; None while it goes on
    error: RwkvGpuError | None = None
