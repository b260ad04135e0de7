"""Requests to the engine, and its updates. Token ids only."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import BadInput, ContextFull
from .cache.prefix_index import PLAIN, Salt
from .media import Span, Spans
from .sampling import Sampled
from .sampling_params import SamplingParams


class Grammar(Protocol):
    """Allowed next tokens. Called on another thread, one call at a time; an exception ends its request."""

    @property
    def done(self) -> bool:
        """True if nothing more can follow."""

    def mask(self) -> npt.NDArray[np.uint32]:
        """One bit per token, set if it is allowed. [ceil(V / 32)]"""

    def accept(self, token: int) -> None:
        """Advances by a sampled token."""


DEFAULT = SamplingParams()
PIECE = 1 << 14  # ids of a prompt that are checked before other threads may run


@dataclass(frozen=True)
class Request:
    """A prompt to continue, and its settings."""

    ids: Sequence[int]  # at least one
    params: SamplingParams = DEFAULT
    grammar: Grammar | None = None
    keep: bool = False  # store prompt and answer, so that a continuation costs only its new tokens
    images: Sequence[Span] = ()  # in order; `ids` has the ids of their rows
    marks: Sequence[int] = ()  # with `keep`: lengths of the prompt at which another continuation may branch off
    salt: Salt = PLAIN  # stored prefixes and images are shared with requests of the same salt

    def check(self, vocabulary: int, context: int | None) -> list[int]:
        """Returns the ids as plain numbers; refuses a prompt that the model cannot take."""
        ids: list[int] = []
        most = 0
        # In pieces, so that other threads run while millions of ids are checked.
        for start in range(0, len(self.ids), PIECE):
            piece = self.ids[start : start + PIECE]
            try:
                numbers = array("Q", piece)
            except (TypeError, OverflowError):  # not integers, or negative
                ids += [int(token) for token in piece]
                most = vocabulary  # so that they are checked one by one
            else:
                ids += numbers.tolist()
                most = max(most, int(np.frombuffer(numbers, np.uint64).max()))
        if not ids:
            raise BadInput("the prompt has no tokens; give at least one")
        check_length(len(ids), context)
        if most >= vocabulary:
            inside = Spans(self.images)
            for at, token in enumerate(ids):
                if not 0 <= token < vocabulary and inside.within(at) is None:
                    raise BadInput(f"token id {token} at place {at} is not in the vocabulary of {vocabulary:,}")
        return ids


def check_length(tokens: int, context: int | None, *, least: bool = False) -> None:
    """Refuses a prompt that does not fit the context. With `least`, `tokens` is a lower bound of its length."""
    if context is not None and tokens > context:
        count = f"at least {tokens:,}" if least else f"{tokens:,}"
        raise ContextFull(  # clients recognise "exceeds the available context size", llama-server's words
            f"a prompt of {count} tokens exceeds the available context size of {context:,}; "
            "shorten it, or load the model with a larger context",
            tokens,
            context,
        )


class Update(NamedTuple):
    """The changes of a request since its last update."""

    id: int
    sampled: tuple[Sampled, ...]  # new tokens, in order; a stop id is not among them
    prompt_done: int  # prompt tokens fed so far
    prompt_tokens: int
    reused: int  # prompt tokens taken from stored prefixes
    finish_reason: str | None  # stop, length, abort or error; None before the end
    error: Exception | None = None
    drafted: int = 0  # tokens drafted so far
    accepted: int = 0  # drafted tokens that were right
    gain: float | None = None  # speed of all steps with drafts so far, relative to steps without
