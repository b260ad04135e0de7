"""One request on its way through the engine: its tokens, how many of them were fed, and what is yet to be told."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RwkvGpuError
from ..ops.sampling import SAID
from .device_sampling import draw_row, samples_on_device, skipped_row
from .request import Request, Update
from .sampling import Sampled, Sampler
from .step_result import Answer


class TokenSequence:
    """A request that was taken on, from its first step to its last news.

    What it says is known to the device first. Steps may be submitted that feed tokens the host has not seen yet; what
    they compute past the end of the answer is dropped.
    """

    def __init__(self, id: int, request: Request, vocabulary: int, context: int | None) -> None:
        self.id = id
        self.request = request
        self.ids = [int(token) for token in request.ids]  # prompt and answer
        self.prompt = len(self.ids)
        self.sampler = Sampler(request.params, vocabulary)
        self.on_host = not samples_on_device(request.params)
        self.synchronous = (
            self.on_host or request.grammar is not None
        )  # each of its tokens is known before the next step
        if self.on_host:
            self.sampler.accept_all(self.ids)
        room = request.params.max_tokens if context is None else context - self.prompt
        self.max_length = self.prompt + min(request.params.max_tokens, room)  # tokens it may come to
        self.slot = -1  # where it sits while it runs
        self.fed = 0  # tokens that its pages or its state have seen, or will when all is done that was submitted
        self.in_flight = 0  # tokens that were drawn, or will be, and are not known here yet
        self.boundaries: frozenset[int] = frozenset()  # where a step must end, since something is kept there
        self.reused = 0
        self.started = False
        self.finish_reason: str | None = None
        self.error: RwkvGpuError | None = None
        self._drawing: npt.NDArray[Any] | None = None
        self._news: list[Sampled] = []

    @property
    def decodes(self) -> bool:
        """Whether its next row is a token that it said."""
        return self.fed >= self.prompt

    @property
    def to_feed(self) -> int:
        """Tokens that can be fed now."""
        known = len(self.ids) - self.fed
        if known > 0:
            return known
        ahead = len(self.ids) + self.in_flight
        return int(self.fed < ahead < self.max_length and not self.synchronous)

    def assign_slot(self, slot: int) -> None:
        """Takes a slot, to begin or to begin again."""
        self.slot = slot
        masked = self.request.grammar is not None
        self._drawing = skipped_row() if self.on_host else None
        if self._drawing is None:
            self._drawing = draw_row(self.request.params, self.sampler.seed, slot, masked=masked)

    def rows(self, start: int, end: int) -> Sequence[int]:
        """The tokens of some positions; what is not known here is what the slot has said last."""
        return self.ids[start:end] or [SAID | self.slot]

    def draw(self) -> npt.NDArray[Any]:
        """How its next token is drawn."""
        assert self._drawing is not None
        self._drawing["number"] = len(self.ids) - self.prompt + self.in_flight
        self._drawing["tokens"] = len(self.ids) + self.in_flight
        return self._drawing

    def mask(self) -> npt.NDArray[np.uint32] | None:
        """The tokens that its grammar allows, where the device draws; one that fails ends the request."""
        if self.request.grammar is None or self.on_host:
            return None
        try:
            return self.request.grammar.mask()
        except RwkvGpuError as error:  # the row is computed, and dropped
            self.end("error", error)
            return None

    def choose(self, answer: Answer, row: int) -> Sampled:
        """The token of its row; raises where the numbers of this row are none."""
        if not self.on_host:
            return answer.chosen[row].sampled()
        assert answer.logits is not None
        grammar = self.request.grammar
        return self.sampler.sample(answer.logits[row], None if grammar is None else grammar.mask())

    def take(self, said: Sampled) -> None:
        """A token was chosen: it is said, or ends the request."""
        if said.token in self.request.params.stop_ids:
            self.end("stop")
            return
        self.ids.append(said.token)
        if self.on_host:
            self.sampler.accept(said.token)
        self._news.append(said)
        grammar = self.request.grammar
        if grammar is not None:
            grammar.accept(said.token)
            if grammar.done:
                self.end("stop")
        if len(self.ids) >= self.max_length:
            self.end("length")

    def end(self, reason: str, error: RwkvGpuError | None = None) -> None:
        """Nothing more is said; the first reason counts."""
        if self.finish_reason is None:
            self.finish_reason, self.error = reason, error

    def update(self) -> Update:
        """What happened since the last one."""
        said, self._news = tuple(self._news), []
        done = min(self.fed, self.prompt)
        return Update(self.id, said, done, self.prompt, self.reused, self.finish_reason, self.error)
