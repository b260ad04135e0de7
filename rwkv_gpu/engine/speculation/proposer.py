"""A source of drafts: prompt lookup, a draft model, or anything else that guesses which tokens come next."""

from collections.abc import Sequence
from typing import NamedTuple

from ..sequence import TokenSequence
from .acceptance import MODEL


class Offer(NamedTuple):
    """A draft that a sequence may have."""

    kind: int  # of `acceptance`: drafts of one kind are right equally often
    tokens: list[int] | None = None  # where they are known at once; None where `draft` takes steps to find them


class Proposer:
    """Drafts tokens for the sequences of an engine. Its methods run on the engine's thread, except `begin`.

    A proposer that knows tokens at once is `free` and overrides `offer`. One that takes steps overrides `draft`.
    """

    free = False  # whether drafts cost no steps; what they would gain is then watched while none are made
    steps = 0  # that the last drafts took
    read = False  # whether texts were read before them

    @property
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans and compiling their shaders."""
        return 0.0

    def begin(self, sequence: TokenSequence) -> None:
        """Gets ready for a new sequence. Any thread may call it."""

    def offer(self, sequence: TokenSequence, most: int) -> Offer | None:  # noqa: ARG002  a draft model always has one
        """What a sequence may have, up to `most` tokens; None if there is nothing."""
        return Offer(MODEL)

    def draft(self, wanted: Sequence[tuple[TokenSequence, int]]) -> dict[TokenSequence, list[int]]:
        """Up to so many tokens for each sequence; none for a text that must be read first."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives back all memory."""
