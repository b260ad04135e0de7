"""A source of drafts: prompt lookup, a draft model, or anything else that predicts next tokens."""

from collections.abc import Sequence
from typing import NamedTuple

from ..sequence import TokenSequence
from .acceptance import MODEL


class Offer(NamedTuple):
    """A possible draft for a sequence."""

    kind: int  # kind of draft, as in `acceptance`; drafts of one kind share an acceptance rate
    tokens: list[int] | None = None  # the tokens, or None if `draft` must compute them


class Proposer:
    """Drafts tokens for the sequences of an engine. Its methods run on the engine's thread, except `begin`.

    A proposer with immediate tokens is `free` and overrides `offer`. One that takes model steps overrides `draft`, or
    is `queued` and has `submit`; the time of its steps is measured as part of those that verify.
    """

    free = False  # drafts take no model steps; their gain is then watched while drafting is off
    queued = False  # drafts are computed by steps that are queued before the one that verifies them
    steps = 0  # model steps of the last drafts
    read = False  # whether texts were read before these drafts

    @property
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans and compiling their shaders."""
        return 0.0

    def begin(self, sequence: TokenSequence) -> None:
        """Prepares for a new sequence. Any thread may call it."""

    def offer(self, sequence: TokenSequence, most: int) -> Offer | None:  # noqa: ARG002  a draft model always has one
        """Returns a possible draft of up to `most` tokens for a sequence; None if there is none."""
        return Offer(MODEL)

    def draft(self, wanted: Sequence[tuple[TokenSequence, int]]) -> dict[TokenSequence, list[int]]:
        """Drafts up to the wanted number of tokens for each sequence; none for a text that must be read first."""
        raise NotImplementedError

    def close(self) -> None:
        """Frees all memory."""
